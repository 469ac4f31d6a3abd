// Normalisation kernels: plain pointers, everything checked by the caller, launched on the current device.
#pragma once
#include <cuda_runtime_api.h>

#include "common/row_strides.h"

namespace qvllm {

// What all norms have: rows of `vectors` times eight elements, all of them read from memory once and kept in registers.
struct NormRows {
  uint32_t rows;
  uint32_t vectors;
  float inverse_dim;
  float eps;
};

struct RmsNormArguments {
  const void* x;
  const void* weight;
  void* y;  // contiguous
  RowStrides x_rows;
  NormRows size;
  float weight_offset;
};

struct AddRmsNormArguments {
  const void* x;
  const void* residual;
  const void* weight;
  void* y;      // contiguous
  void* total;  // contiguous
  RowStrides x_rows;
  RowStrides residual_rows;
  NormRows size;
  float weight_offset;
};

struct GatedRmsNormArguments {
  const void* x;
  const void* gate;
  const void* weight;
  void* y;  // contiguous
  RowStrides x_rows;
  RowStrides gate_rows;
  NormRows size;
  bool float_weight;  // float32, else bfloat16
};

inline constexpr int64_t kNormMaxDim = 16384;

cudaError_t launch_rms_norm(const RmsNormArguments& arguments, cudaStream_t stream);
cudaError_t launch_add_rms_norm(const AddRmsNormArguments& arguments, cudaStream_t stream);
cudaError_t launch_gated_rms_norm(const GatedRmsNormArguments& arguments, cudaStream_t stream);

}  // namespace qvllm
