// RMS normalisation: y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight). Each row is read once and kept in registers.
#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "common/vector.cuh"
#include "norm/kernels.h"

namespace qvllm {
namespace {

constexpr int kWholeBlock = 0;
constexpr int kWarpGroupThreads = 128;

// kGroup threads share a row: 8, 16 or 32 lanes of a warp, or the whole block. Each holds kVectors vectors of it.
// kRoundFirst: the normalised value is rounded to bfloat16 before it meets the weight.
template <int kGroup, int kVectors, bool kRoundFirst>
__global__ void __launch_bounds__(kGroup == kWholeBlock ? 1024 : kWarpGroupThreads) rms_norm_kernel(RmsNormArguments a) {
  const uint32_t group = kGroup == kWholeBlock ? blockDim.x : kGroup;
  const uint32_t row = kGroup == kWholeBlock ? blockIdx.x : blockIdx.x * (kWarpGroupThreads / group) + threadIdx.x / group;
  const uint32_t first = kGroup == kWholeBlock ? threadIdx.x : threadIdx.x % group;
  // Groups past the last row stay for the shuffles, with nothing to load or store.
  const uint32_t vectors = row < a.rows ? a.vectors : 0;
  const auto* x = static_cast<const Bf16x8*>(a.x) + a.x_rows.start(row);
  const auto* weight = static_cast<const Bf16x8*>(a.weight);
  auto* y = static_cast<Bf16x8*>(a.y) + int64_t{row} * a.vectors;
  wait_for_previous_kernel();

  Bf16x8 values[kVectors] = {}, weights[kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const uint32_t i = first + j * group;
    if (i < vectors) values[j] = x[i], weights[j] = weight[i];
  }

  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const Float8 v = to_float(values[j]);
#pragma unroll
    for (int k = 0; k < kVectorWidth; ++k) squares += v.at[k] * v.at[k];
  }
  if constexpr (kGroup == kWholeBlock) squares = block_sum(squares);
  else squares = lane_sum<kGroup>(squares);
  const float scale = rsqrtf(squares / (a.vectors * kVectorWidth) + a.eps);

#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const uint32_t i = first + j * group;
    if (i >= vectors) continue;
    Float8 v = to_float(values[j]);
    const Float8 w = to_float(weights[j]);
#pragma unroll
    for (int k = 0; k < kVectorWidth; ++k) v.at[k] *= scale;
    if constexpr (kRoundFirst) v = to_float(to_bf16(v));
#pragma unroll
    for (int k = 0; k < kVectorWidth; ++k) v.at[k] *= a.weight_offset + w.at[k];
    y[i] = to_bf16(v);
  }
}

template <int kGroup, int kVectors>
cudaError_t launch_shape(const RmsNormArguments& a, cudaStream_t stream) {
  auto* kernel = a.weight_offset == 0.0f ? rms_norm_kernel<kGroup, kVectors, true> : rms_norm_kernel<kGroup, kVectors, false>;
  if constexpr (kGroup == kWholeBlock) {
    const uint32_t threads = (a.vectors + kVectors * 32 - 1) / (kVectors * 32) * 32;
    return launch(kernel, a.rows, threads, stream, a);
  } else {
    constexpr uint32_t rows_per_block = kWarpGroupThreads / kGroup;
    return launch(kernel, (a.rows + rows_per_block - 1) / rows_per_block, kWarpGroupThreads, stream, a);
  }
}

}  // namespace

// Short rows (heads) share a warp, so that no lane is idle and no barrier is met; rows over 1024 elements take a block.
cudaError_t launch_rms_norm(const RmsNormArguments& a, cudaStream_t stream) {
  if (a.vectors <= 8) return launch_shape<8, 1>(a, stream);
  if (a.vectors <= 16) return launch_shape<16, 1>(a, stream);
  if (a.vectors <= 32) return launch_shape<32, 1>(a, stream);
  if (a.vectors <= 64) return launch_shape<32, 2>(a, stream);
  if (a.vectors <= 128) return launch_shape<32, 4>(a, stream);
  if (a.vectors <= 512) return launch_shape<kWholeBlock, 1>(a, stream);
  return launch_shape<kWholeBlock, 2>(a, stream);
}

}  // namespace qvllm
