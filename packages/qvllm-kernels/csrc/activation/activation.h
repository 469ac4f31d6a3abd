// Activation operators.
#pragma once
#include <torch/csrc/stable/tensor.h>

namespace qvllm {

// silu(x[..., :dim]) * x[..., dim:]. x [..., 2 * dim] bfloat16, dim a multiple of 8. The result is contiguous.
torch::stable::Tensor silu_and_mul(const torch::stable::Tensor& x);
torch::stable::Tensor silu_and_mul_cpu(const torch::stable::Tensor& x);

}  // namespace qvllm
