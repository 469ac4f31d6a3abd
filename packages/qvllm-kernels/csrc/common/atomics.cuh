// How blocks of one launch tell each other that results are in global memory.
#pragma once

namespace qvllm {

// Adds to a counter and returns its value before. What this thread, and after a barrier its block, stored before is visible to
// whoever reads the counter later in the same way; what others stored before they counted is visible here.
__device__ __forceinline__ int count_arrival(int* counter) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

}  // namespace qvllm
