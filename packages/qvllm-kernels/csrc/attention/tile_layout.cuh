// Where the rows of a tile of keys or values lie in shared memory.
#pragma once
#include <cstdint>

namespace qvllm {

// Rows of head_dim bfloat16 one after the other. Within a row, the 16-byte vectors are permuted (by xor), so that the same
// vector of eight successive rows, which one tensor-core load takes, falls into eight different groups of banks.
template <int kHeadDim>
struct TileLayout {
  static constexpr int kVectors = kHeadDim / 8;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kRowsPerLine = kRowBytes < 128 ? 128 / kRowBytes : 1;

  // Of vector `vector` of row `row`, in bytes. Also offset(row, v | w) == offset(row, v) ^ 16 * w where v and w share no bit.
  __device__ static constexpr uint32_t offset(int row, int vector) {
    constexpr int kPermuted = kVectors < 8 ? kVectors : 8;
    return row * kRowBytes + 16 * (vector ^ (row / kRowsPerLine % kPermuted));
  }
};

}  // namespace qvllm
