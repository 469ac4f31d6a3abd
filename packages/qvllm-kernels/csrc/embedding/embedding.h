// Embedding lookup.
#pragma once
#include <torch/csrc/stable/tensor.h>

namespace qvllm {

// Row id - first_id of weight for every id, zeros where there is no such row.
// token_ids [tokens] int32; weight [rows, dim] bfloat16, dim a multiple of 8. The result is contiguous.
torch::stable::Tensor embedding(const torch::stable::Tensor& token_ids, const torch::stable::Tensor& weight, int64_t first_id);
torch::stable::Tensor embedding_cpu(const torch::stable::Tensor& token_ids, const torch::stable::Tensor& weight, int64_t first_id);

}  // namespace qvllm
