// Normalisation operators, over the last dimension. Their results are contiguous.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <tuple>

namespace qvllm {

// x / sqrt(mean(x^2) + eps) * (weight_offset + weight).
// x [..., dim] bfloat16, dim a multiple of 8 up to 16384; weight [dim] bfloat16.
torch::stable::Tensor rms_norm(const torch::stable::Tensor& x, const torch::stable::Tensor& weight, double eps,
                               double weight_offset);
torch::stable::Tensor rms_norm_cpu(const torch::stable::Tensor& x, const torch::stable::Tensor& weight, double eps,
                                   double weight_offset);

// rms_norm(x + residual) and x + residual. residual like x.
std::tuple<torch::stable::Tensor, torch::stable::Tensor> add_rms_norm(const torch::stable::Tensor& x,
                                                                      const torch::stable::Tensor& residual,
                                                                      const torch::stable::Tensor& weight, double eps,
                                                                      double weight_offset);
std::tuple<torch::stable::Tensor, torch::stable::Tensor> add_rms_norm_cpu(const torch::stable::Tensor& x,
                                                                          const torch::stable::Tensor& residual,
                                                                          const torch::stable::Tensor& weight, double eps,
                                                                          double weight_offset);

// rms_norm(x, weight, eps) * silu(gate). gate like x; the weight may also be float32.
torch::stable::Tensor gated_rms_norm(const torch::stable::Tensor& x, const torch::stable::Tensor& gate,
                                     const torch::stable::Tensor& weight, double eps);
torch::stable::Tensor gated_rms_norm_cpu(const torch::stable::Tensor& x, const torch::stable::Tensor& gate,
                                         const torch::stable::Tensor& weight, double eps);

}  // namespace qvllm
