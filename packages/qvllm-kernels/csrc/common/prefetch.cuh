// Bringing memory closer before it is read.
#pragma once
#include <cstdint>

namespace qvllm {

// Starts to bring `bytes` bytes into the second-level cache, with the threads of one block. Nothing is read and nothing can be
// out of date: an earlier kernel that still writes there writes to that cache. So it may be called before
// wait_for_previous_kernel, and a weight that lies in memory is on its way while the previous kernel ends.
__device__ __forceinline__ void prefetch_to_l2(const void* start, uint32_t bytes) {
  constexpr uint32_t kLine = 128;
  for (uint32_t i = threadIdx.x * kLine; i < bytes; i += blockDim.x * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(start) + i));
}

}  // namespace qvllm
