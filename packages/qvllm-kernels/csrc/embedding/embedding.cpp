#include "embedding/embedding.h"

#include "common/operands.h"
#include "embedding/kernels.h"

namespace qvllm {
namespace {

constexpr const char* kOp = "embedding";

void check_embedding(const Tensor& token_ids, const Tensor& weight, int64_t first_id) {
  check_rows(kOp, "weight", weight, 8);
  require(weight.dim() == 2, kOp, ": weight must be [rows, dim], got ", shape_of(weight));
  // A table is too large to be copied at every call.
  require(rows_aligned(weight), kOp, ": every row of weight must start on 16 bytes, got a row stride of ", weight.stride(0),
          " elements; use a multiple of 8 and an aligned start, or call .contiguous() once");
  require(token_ids.scalar_type() == ScalarType::Int, kOp, ": token_ids must be int32, got ", token_ids.scalar_type());
  require(token_ids.dim() == 1, kOp, ": token_ids must be [tokens], got ", shape_of(token_ids));
  require(token_ids.size(0) <= std::numeric_limits<int32_t>::max(), kOp, ": at most 2147483647 tokens are supported, got ",
          token_ids.size(0));
  check_list(kOp, "token_ids", token_ids, token_ids.size(0), "weight", weight);
  require(first_id >= 0, kOp, ": first_id must be zero or positive, got ", first_id);
}

}  // namespace

Tensor embedding(const Tensor& token_ids, const Tensor& weight, int64_t first_id) {
  check_embedding(token_ids, weight, first_id);
  const int64_t tokens = token_ids.size(0), dim = weight.size(1);
  Tensor y = torch::stable::new_empty(weight, {tokens, dim});
  if (tokens == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(weight.get_device_index());
  EmbeddingArguments arguments{};
  arguments.token_ids = static_cast<const int32_t*>(token_ids.const_data_ptr());
  arguments.weight = weight.const_data_ptr();
  arguments.y = y.mutable_data_ptr();
  arguments.first_id = first_id;
  arguments.weight_rows = weight.size(0);
  arguments.weight_stride = weight.stride(0) / 8;
  arguments.tokens = static_cast<uint32_t>(tokens);
  arguments.vectors = static_cast<uint32_t>(dim / 8);
  check_launch(kOp, launch_embedding(arguments, current_stream(weight)));
  return y;
}

// The arguments are checked first, so that every message can be met without a GPU.
Tensor embedding_cpu(const Tensor& token_ids, const Tensor& weight, int64_t first_id) {
  check_embedding(token_ids, weight, first_id);
  refuse_cpu(kOp);
}

}  // namespace qvllm
