// Attention operators over the paged key-value cache.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>

namespace qvllm {

// Attention of one query per sequence. q [seqs, q_heads, head_dim] bfloat16; caches [num_blocks, kv_heads, block_size, head_dim];
// block_tables [seqs, width] and kv_lens [seqs] int32. `workspace` is float32, decode_workspace_size elements, zero at first;
// without it the call makes its own. `splits`: parts that a sequence may be cut into; 0 chooses. The result is contiguous.
torch::stable::Tensor decode_attention(const torch::stable::Tensor& q, const torch::stable::Tensor& k_cache,
                                       const torch::stable::Tensor& v_cache, const torch::stable::Tensor& block_tables,
                                       const torch::stable::Tensor& kv_lens, double scale,
                                       const std::optional<torch::stable::Tensor>& workspace, int64_t splits);
torch::stable::Tensor decode_attention_cpu(const torch::stable::Tensor& q, const torch::stable::Tensor& k_cache,
                                           const torch::stable::Tensor& v_cache, const torch::stable::Tensor& block_tables,
                                           const torch::stable::Tensor& kv_lens, double scale,
                                           const std::optional<torch::stable::Tensor>& workspace, int64_t splits);

// Elements of a workspace for any call of decode_attention of at most that size.
int64_t decode_workspace_size(int64_t max_seqs, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim, int64_t max_kv_len);

}  // namespace qvllm
