// Normalisation kernels: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include "common/row_strides.h"

namespace qvllm {

struct RmsNormArguments {
  const void* x;
  const void* weight;
  void* y;  // contiguous
  RowStrides x_rows;
  uint32_t rows;
  uint32_t vectors;  // per row, eight elements each
  float eps;
  float weight_offset;
};

inline constexpr int64_t kRmsNormMaxDim = 16384;

cudaError_t launch_rms_norm(const RmsNormArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
