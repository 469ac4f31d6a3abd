// The kernel behind every elementwise operator of two inputs: each thread reads 16 bytes of either and writes 16.
#pragma once
#include <limits>

#include "activation/kernels.h"
#include "common/launch.cuh"
#include "common/vector.cuh"

namespace qvllm {

constexpr uint32_t kTwoInputsThreads = 256;
// Vectors per thread, and from how many vectors on: less would not give every multiprocessor enough blocks.
constexpr int kTwoInputsUnroll = 2;
constexpr uint64_t kTwoInputsMany = 1 << 19;

// `Combine` takes an element of x and one of y, as floats. Index is 32 bits wide where that suffices, since 64-bit division is
// slow. All loads of a thread come first, so that they wait for memory together.
template <typename Combine, typename Index, int kVectors>
__global__ void __launch_bounds__(kTwoInputsThreads) two_inputs_kernel(TwoInputsArguments a) {
  const Index first = Index{blockIdx.x} * (kTwoInputsThreads * kVectors) + threadIdx.x;
  const Bf16x8 *x[kVectors], *y[kVectors];
  bool inside[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const Index i = first + j * kTwoInputsThreads;
    const auto row = static_cast<uint32_t>(i / a.vectors);
    const auto column = static_cast<uint32_t>(i - Index{row} * a.vectors);
    inside[j] = row < a.rows;
    x[j] = static_cast<const Bf16x8*>(a.x) + a.x_rows.start(row) + column;
    y[j] = static_cast<const Bf16x8*>(a.y) + a.y_rows.start(row) + column;
  }
  wait_for_previous_kernel();
  Bf16x8 xs[kVectors] = {}, ys[kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    if (inside[j]) xs[j] = *x[j], ys[j] = *y[j];
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const Float8 left = to_float(xs[j]), right = to_float(ys[j]);
    Float8 out;
#pragma unroll
    for (int k = 0; k < kVectorWidth; ++k) out.at[k] = Combine{}(left.at[k], right.at[k]);
    if (inside[j]) static_cast<Bf16x8*>(a.out)[first + j * kTwoInputsThreads] = to_bf16(out);
  }
}

template <typename Combine, int kVectors>
cudaError_t launch_two_inputs_unrolled(const TwoInputsArguments& a, cudaStream_t stream) {
  constexpr uint64_t kPerBlock = kTwoInputsThreads * kVectors;
  const uint64_t blocks = (uint64_t{a.rows} * a.vectors + kPerBlock - 1) / kPerBlock;
  if (blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;  // over 8 TB of input
  const bool small = blocks * kPerBlock <= std::numeric_limits<uint32_t>::max();
  auto* kernel = small ? two_inputs_kernel<Combine, uint32_t, kVectors> : two_inputs_kernel<Combine, uint64_t, kVectors>;
  return launch(kernel, static_cast<unsigned>(blocks), kTwoInputsThreads, stream, a);
}

template <typename Combine>
cudaError_t launch_two_inputs(const TwoInputsArguments& a, cudaStream_t stream) {
  if (uint64_t{a.rows} * a.vectors < kTwoInputsMany) return launch_two_inputs_unrolled<Combine, 1>(a, stream);
  return launch_two_inputs_unrolled<Combine, kTwoInputsUnroll>(a, stream);
}

}  // namespace qvllm
