// Copies from global to shared memory that pass no register (cp.async). A thread's copies are complete, in groups, in the order
// in which it committed them; other threads see them after that thread's wait and a barrier.
#pragma once
#include <cstdint>

namespace qvllm {

// 16 bytes, past the first-level cache. Where not `valid`, nothing is read and zeros are written.
__device__ __forceinline__ void copy_16_bytes(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}

// Closes the group of the copies since the last call; an empty group is allowed.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Returns when at most the kPending latest groups are still under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace qvllm
