// What lies between the projection of queries, keys and values and attention.
#pragma once
#include <torch/csrc/stable/tensor.h>

namespace qvllm {

// rms_norm of every head of q and k, rotary_embedding, store_kv; returns q [tokens, num_q_heads, head_dim], contiguous.
// qkv [tokens, (num_q_heads + 2 * num_kv_heads) * head_dim] bfloat16; the others as these operators take them.
torch::stable::Tensor qk_norm_rope_store(const torch::stable::Tensor& qkv, const torch::stable::Tensor& q_weight,
                                         const torch::stable::Tensor& k_weight, double eps, double weight_offset,
                                         const torch::stable::Tensor& cos, const torch::stable::Tensor& sin,
                                         torch::stable::Tensor k_cache, torch::stable::Tensor v_cache,
                                         const torch::stable::Tensor& slot_mapping, int64_t num_q_heads, int64_t num_kv_heads);
torch::stable::Tensor qk_norm_rope_store_cpu(const torch::stable::Tensor& qkv, const torch::stable::Tensor& q_weight,
                                             const torch::stable::Tensor& k_weight, double eps, double weight_offset,
                                             const torch::stable::Tensor& cos, const torch::stable::Tensor& sin,
                                             torch::stable::Tensor k_cache, torch::stable::Tensor v_cache,
                                             const torch::stable::Tensor& slot_mapping, int64_t num_q_heads, int64_t num_kv_heads);

}  // namespace qvllm
