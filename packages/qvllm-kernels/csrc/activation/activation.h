// Elementwise operators. Their results are contiguous.
#pragma once
#include <torch/csrc/stable/tensor.h>

namespace qvllm {

// silu(x[..., :dim]) * x[..., dim:]. x [..., 2 * dim] bfloat16, dim a multiple of 8.
torch::stable::Tensor silu_and_mul(const torch::stable::Tensor& x);
torch::stable::Tensor silu_and_mul_cpu(const torch::stable::Tensor& x);

// x + y. Both [..., dim] bfloat16, of one shape, dim a multiple of 8.
torch::stable::Tensor add(const torch::stable::Tensor& x, const torch::stable::Tensor& y);
torch::stable::Tensor add_cpu(const torch::stable::Tensor& x, const torch::stable::Tensor& y);

// x * sigmoid(gate), shapes as in add.
torch::stable::Tensor sigmoid_mul(const torch::stable::Tensor& x, const torch::stable::Tensor& gate);
torch::stable::Tensor sigmoid_mul_cpu(const torch::stable::Tensor& x, const torch::stable::Tensor& gate);

}  // namespace qvllm
