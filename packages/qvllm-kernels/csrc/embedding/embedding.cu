// Embedding lookup. An address is known only when memory has answered with the id, so a row has two latencies, one after the
// other; what a warp can do is to ask for much of the row at once.
#include <limits>

#include "common/launch.cuh"
#include "common/vector.cuh"
#include "embedding/kernels.h"

namespace qvllm {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr int kVectors = 4;  // per lane: a warp copies 2 KB of a row

// A warp takes a piece of one token's row.
__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingArguments a) {
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t token = warp / a.pieces;
  const uint32_t first = (warp - token * a.pieces) * (32 * kVectors) + threadIdx.x % 32;
  wait_for_previous_kernel();
  if (token >= a.tokens) return;
  const int64_t row = a.token_ids[token] - a.first_id;
  const bool in_shard = row >= 0 && row < a.weight_rows;
  const auto* source = static_cast<const Bf16x8*>(a.weight) + row * a.weight_stride;
  auto* target = static_cast<Bf16x8*>(a.y) + int64_t{token} * a.vectors;
  Bf16x8 values[kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (in_shard && first + j * 32 < a.vectors) values[j] = source[first + j * 32];
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (first + j * 32 < a.vectors) target[first + j * 32] = values[j];
  }
}

}  // namespace

cudaError_t launch_embedding(EmbeddingArguments a, cudaStream_t stream) {
  a.pieces = (a.vectors + 32 * kVectors - 1) / (32 * kVectors);
  const uint64_t warps = uint64_t{a.tokens} * a.pieces;
  if (warps > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;  // over 4 TB of output
  return launch(embedding_kernel, static_cast<unsigned>((warps + kWarps - 1) / kWarps), kThreads, stream, a);
}

}  // namespace qvllm
