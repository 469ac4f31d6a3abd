// Embedding kernel: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace qvllm {

struct EmbeddingArguments {
  const int32_t* token_ids;
  const void* weight;
  void* y;  // contiguous
  int64_t first_id;
  int64_t weight_rows;
  int64_t weight_stride;  // in vectors of eight elements
  uint32_t tokens;
  uint32_t vectors;  // per row
  uint32_t pieces;   // of a row, set by the launch
};

cudaError_t launch_embedding(EmbeddingArguments arguments, cudaStream_t stream);

}  // namespace qvllm
