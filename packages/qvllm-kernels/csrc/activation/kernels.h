// Activation kernels: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include "common/row_strides.h"

namespace qvllm {

struct SiluAndMulArguments {
  const void* x;
  void* y;  // contiguous
  RowStrides x_rows;
  uint32_t rows;
  uint32_t vectors;  // per row of y, eight elements each
};

cudaError_t launch_silu_and_mul(const SiluAndMulArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
