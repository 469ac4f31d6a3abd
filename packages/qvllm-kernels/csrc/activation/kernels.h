// Elementwise kernels: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include "common/row_strides.h"

namespace qvllm {

struct TwoInputsArguments {
  const void* x;
  const void* y;
  void* out;  // contiguous
  RowStrides x_rows;
  RowStrides y_rows;
  uint32_t rows;
  uint32_t vectors;  // per row, eight elements each
};

cudaError_t launch_add(const TwoInputsArguments& arguments, cudaStream_t stream);
cudaError_t launch_silu_and_mul(const TwoInputsArguments& arguments, cudaStream_t stream);
cudaError_t launch_sigmoid_mul(const TwoInputsArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
