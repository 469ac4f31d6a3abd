// Normalisation operators.
#pragma once
#include <torch/csrc/stable/tensor.h>

namespace qvllm {

// y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) over the last dimension.
// x [..., dim] bfloat16, dim a multiple of 8 up to 16384; weight [dim] bfloat16. The result is contiguous.
torch::stable::Tensor rms_norm(const torch::stable::Tensor& x, const torch::stable::Tensor& weight, double eps, double weight_offset);
torch::stable::Tensor rms_norm_cpu(const torch::stable::Tensor& x, const torch::stable::Tensor& weight, double eps, double weight_offset);

}  // namespace qvllm
