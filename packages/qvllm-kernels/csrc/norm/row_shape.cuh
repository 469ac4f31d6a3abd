// How rows lie over threads, for kernels that need a sum over each row: where a thread's vectors are, and the sum.
#pragma once
#include <cuda_runtime_api.h>

#include "common/reduce.cuh"
#include "norm/kernels.h"

namespace qvllm {

constexpr int kWholeBlock = 0;

// kLanes threads share a row: 8, 16 or 32 lanes of a warp, or the whole block. Each holds kVectors vectors of it, and of kRows
// rows in all. A thread asks for all its vectors before it waits for the first: memory answers after about a microsecond, and
// until then every multiprocessor must have about 32 KB under way.
template <int kLanes, int kVectorsPerRow, int kRowsPerThread>
struct RowShape {
  static constexpr int kVectors = kVectorsPerRow, kRows = kRowsPerThread;
  static constexpr uint32_t kGroupThreads = 128;
  static constexpr uint32_t kMaxThreads = kLanes != kWholeBlock ? kGroupThreads : kVectors == 1 ? 1024 : 512;

  static uint32_t threads(const NormRows& size) {
    if constexpr (kLanes != kWholeBlock)
      return kGroupThreads;
    else
      return (size.vectors + kVectors * 32 - 1) / (kVectors * 32) * 32;
  }

  static uint32_t blocks(const NormRows& size) {
    if constexpr (kLanes == kWholeBlock) return size.rows;
    constexpr uint32_t kPerBlock = kGroupThreads / (kLanes == kWholeBlock ? 1 : kLanes) * kRows;
    return (size.rows + kPerBlock - 1) / kPerBlock;
  }

  // The thread's row number r, which may lie past the last. Neighbouring groups take neighbouring rows.
  static __device__ __forceinline__ uint32_t row(int r) {
    if constexpr (kLanes == kWholeBlock)
      return blockIdx.x;
    else
      return (blockIdx.x * kRows + r) * (kGroupThreads / kLanes) + threadIdx.x / kLanes;
  }

  // Where the thread's vector j lies in its row; it may lie past the end.
  static __device__ __forceinline__ uint32_t column(int j) {
    if constexpr (kLanes == kWholeBlock)
      return threadIdx.x + j * blockDim.x;
    else
      return threadIdx.x % kLanes + j * kLanes;
  }

  // Adds up what the threads of each row have, for all kRows rows. Once per kernel.
  static __device__ __forceinline__ void row_sums(float (&values)[kRows]) {
    if constexpr (kLanes == kWholeBlock)
      values[0] = block_sum(values[0]);
    else
      lane_sums<kLanes>(values);
  }
};

// So many vectors the GPU takes at once with one vector per thread. Then time is latency, and rows are spread wide.
constexpr uint64_t kOneWave = 1 << 16;

// Calls `run` with the shape for these rows, as an object of its type. Short rows (heads) share a warp, so that no lane is idle
// and no barrier is met; many rows up to 1024 elements take a warp each, other rows a block.
template <typename Run>
cudaError_t with_row_shape(const NormRows& size, Run run) {
  const uint32_t vectors = size.vectors;
  if (uint64_t{size.rows} * vectors <= kOneWave) {
    if (vectors <= 8) return run(RowShape<8, 1, 1>{});
    if (vectors <= 16) return run(RowShape<16, 1, 1>{});
    if (vectors <= 32) return run(RowShape<32, 1, 1>{});
    if (vectors <= 1024) return run(RowShape<kWholeBlock, 1, 1>{});
  } else {
    if (vectors <= 8) return run(RowShape<8, 1, 4>{});
    if (vectors <= 16) return run(RowShape<16, 1, 4>{});
    if (vectors <= 32) return run(RowShape<32, 1, 4>{});
    if (vectors <= 64) return run(RowShape<32, 2, 2>{});
    if (vectors <= 128) return run(RowShape<32, 4, 1>{});
  }
  return run(RowShape<kWholeBlock, 4, 1>{});
}

}  // namespace qvllm
