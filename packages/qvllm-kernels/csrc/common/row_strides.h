// Where the rows of a tensor start when its leading dimensions do not collapse into one stride.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define QVLLM_HOST_DEVICE __host__ __device__
#else
#define QVLLM_HOST_DEVICE
#endif

namespace qvllm {

// Row `r` starts at (r / inner) * outer_stride + (r % inner) * inner_stride, counted in vectors. Heads that are slices of one
// projection, [tokens, heads, dim], are the case: inner = heads. A tensor with one stride has inner = its row count.
struct RowStrides {
  uint32_t inner;
  int64_t outer_stride;
  int64_t inner_stride;

  QVLLM_HOST_DEVICE int64_t start(uint32_t row) const {
    if (row < inner) return row * inner_stride;  // always, where there is one stride: no division
    const uint32_t outer = row / inner;
    return outer * outer_stride + (row - outer * inner) * inner_stride;
  }
};

}  // namespace qvllm
