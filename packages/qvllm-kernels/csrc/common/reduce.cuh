// Sums over neighbouring lanes and over a block. Every thread of the group must take part, and every one gets the sum.
#pragma once

namespace qvllm {

// Lanes [k * kLanes, (k + 1) * kLanes) of a warp form a group; kLanes is a power of two up to 32.
template <int kLanes>
__device__ __forceinline__ float lane_sum(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// The same for several values: the exchanges of all are under way together.
template <int kLanes, int kValues>
__device__ __forceinline__ void lane_sums(float (&values)[kValues]) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], distance);
  }
}

// blockDim.x is a multiple of 32. Uses one barrier, so it may be called once per kernel. The second step reads the sums of
// all warps at once, which takes less time than five more exchanges.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float warp_sums[32];
  const unsigned num_warps = blockDim.x / 32;
  value = lane_sum<32>(value);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll 8
  for (unsigned i = 0; i < num_warps; ++i) sum += warp_sums[i];
  return sum;
}

}  // namespace qvllm
