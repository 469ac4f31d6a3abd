// SwiGLU's product: y = silu(gate) * up, silu(g) = g / (1 + exp(-g)), for rows that hold gate and up side by side.
#include <limits>

#include "activation/kernels.h"
#include "common/launch.cuh"
#include "common/vector.cuh"

namespace qvllm {
namespace {

constexpr uint32_t kThreads = 256;

// exp is only taken of values up to 0: it cannot overflow, and the denominator stays in [1, 2].
__device__ __forceinline__ float silu(float gate) {
  const float decay = __expf(-fabsf(gate));
  return gate * __fdividef(gate >= 0.0f ? 1.0f : decay, 1.0f + decay);
}

// One vector of y per thread. Index is 32 bits wide where that suffices, since 64-bit division is slow.
template <typename Index>
__global__ void __launch_bounds__(kThreads) silu_and_mul_kernel(SiluAndMulArguments a) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  const auto row = static_cast<uint32_t>(i / a.vectors);
  const auto column = static_cast<uint32_t>(i - Index{row} * a.vectors);
  const auto* x = static_cast<const Bf16x8*>(a.x) + a.x_rows.start(row) + column;
  wait_for_previous_kernel();
  if (row >= a.rows) return;
  const Bf16x8 gates = x[0], ups = x[a.vectors];
  const Float8 gate = to_float(gates), up = to_float(ups);
  Float8 product;
#pragma unroll
  for (int k = 0; k < kVectorWidth; ++k) product.at[k] = silu(gate.at[k]) * up.at[k];
  static_cast<Bf16x8*>(a.y)[i] = to_bf16(product);
}

}  // namespace

cudaError_t launch_silu_and_mul(const SiluAndMulArguments& a, cudaStream_t stream) {
  const uint64_t blocks = (uint64_t{a.rows} * a.vectors + kThreads - 1) / kThreads;
  if (blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;  // over 8 TB of input
  const bool small = blocks * kThreads <= std::numeric_limits<uint32_t>::max();
  return launch(small ? silu_and_mul_kernel<uint32_t> : silu_and_mul_kernel<uint64_t>, static_cast<unsigned>(blocks), kThreads, stream, a);
}

}  // namespace qvllm
