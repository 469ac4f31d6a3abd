// Writes into the paged cache.
#pragma once
#include <torch/csrc/stable/tensor.h>

namespace qvllm {

// Keys and values of every token into its slot, block * block_size + offset; a negative slot stores nothing.
// k and v [tokens, kv_heads, head_dim], caches [num_blocks, kv_heads, block_size, head_dim], all bfloat16; slot_mapping [tokens]
// int64.
void store_kv(const torch::stable::Tensor& k, const torch::stable::Tensor& v, torch::stable::Tensor k_cache,
              torch::stable::Tensor v_cache, const torch::stable::Tensor& slot_mapping);
void store_kv_cpu(const torch::stable::Tensor& k, const torch::stable::Tensor& v, torch::stable::Tensor k_cache,
                  torch::stable::Tensor v_cache, const torch::stable::Tensor& slot_mapping);

}  // namespace qvllm
