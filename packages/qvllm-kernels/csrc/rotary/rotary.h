// Rotary position embedding.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <tuple>

namespace qvllm {

// New q and k, contiguous, with pairs (i, i + rotary_dim / 2) of each head rotated and the rest copied.
// q [tokens, q_heads, head_dim] and k [tokens, kv_heads, head_dim] bfloat16; cos and sin [tokens, rotary_dim / 2] float32.
std::tuple<torch::stable::Tensor, torch::stable::Tensor> rotary_embedding(const torch::stable::Tensor& q,
                                                                          const torch::stable::Tensor& k,
                                                                          const torch::stable::Tensor& cos,
                                                                          const torch::stable::Tensor& sin);
std::tuple<torch::stable::Tensor, torch::stable::Tensor> rotary_embedding_cpu(const torch::stable::Tensor& q,
                                                                              const torch::stable::Tensor& k,
                                                                              const torch::stable::Tensor& cos,
                                                                              const torch::stable::Tensor& sin);

}  // namespace qvllm
