// Which unit of work a block of decode attention has next, and which keys of it each warp reads.
#pragma once
#include "attention/kernels.h"

namespace qvllm {

inline constexpr int kDecodeWarps = 4;
// Keys that a warp takes at a time, the rows of a tensor-core product.
inline constexpr int kTileKeys = 16;
static_assert(kDecodeWarps * kTileKeys == kChunkKeys);
// Sequences of at most so many chunks are left whole: to add up parts would take longer than to read all keys at once.
inline constexpr int kWholeChunks = 3;

struct Unit {
  int index;  // a.units or more: there is none
  int seq, kv_head, slice, item, split;
  int kv_len, parts;
};

// How many parts a sequence has. The launch does not depend on its length, so the length alone decides here.
__device__ __forceinline__ int parts_of(const DecodeArguments& a, int kv_len) {
  const int chunks = (kv_len + kChunkKeys - 1) / kChunkKeys;
  if (a.splits == 1 || chunks <= kWholeChunks) return 1;
  // More parts are read sooner, but one block adds them all up: the two times together are shortest where the parts, and so the
  // chunks of each, grow as the square root of the chunks.
  const int balanced_rounds = static_cast<int>(a.rounds_per_root * sqrtf(static_cast<float>(chunks)));
  const int rounds = max((chunks + a.splits - 1) / a.splits, max(a.shortest_rounds, balanced_rounds));
  return (chunks + rounds - 1) / rounds;
}

// The unit, without its length.
__device__ __forceinline__ Unit unit_at(const DecodeArguments& a, int index) {
  Unit unit{};
  unit.index = index;
  unit.split = a.items.quotient(index);
  unit.item = index - unit.split * a.items.value;
  const int head = a.slices.quotient(unit.item);
  unit.slice = unit.item - head * a.slices.value;
  unit.seq = a.kv_heads.quotient(head);
  unit.kv_head = head - unit.seq * a.kv_heads.value;
  return unit;
}

// The first unit from `index` on, in steps of the grid, that has keys to read or zeros to write. A sequence has fewer parts
// than the launch has room for, so a warp looks at 32 units at a time. All lanes get the same answer.
__device__ __forceinline__ Unit next_unit(const DecodeArguments& a, int index) {
  const int lane = threadIdx.x % 32, step = gridDim.x;
  while (index < a.units) {
    Unit unit = unit_at(a, index + lane * step);
    if (unit.index < a.units) unit.kv_len = a.kv_lens[unit.seq];
    const bool has_work = unit.index < a.units && unit.split < parts_of(a, unit.kv_len);
    const unsigned found = __ballot_sync(0xffffffffu, has_work);
    if (found != 0) {
      const int first = __ffs(found) - 1, kv_len = __shfl_sync(0xffffffffu, unit.kv_len, first);
      unit = unit_at(a, index + first * step);
      unit.kv_len = kv_len;
      unit.parts = parts_of(a, kv_len);
      return unit;
    }
    index += 32 * step;
  }
  Unit none{};
  none.index = a.units;
  return none;
}

// The tiles of one warp in a unit. Part p of an item has the chunks p, p + parts, p + 2 * parts, ... of the keys: so the first
// key does not depend on the length, and the parts are equal to within a chunk. Warp w has tile w of each chunk.
struct WarpTiles {
  int first_key, step, count;

  __device__ __forceinline__ int key(int tile) const { return first_key + tile * step; }
};

__device__ __forceinline__ WarpTiles warp_tiles(const Unit& unit) {
  const int first_key = unit.split * kChunkKeys + threadIdx.x / 32 * kTileKeys, step = unit.parts * kChunkKeys;
  return {first_key, step, unit.kv_len > first_key ? (unit.kv_len - first_key + step - 1) / step : 0};
}

}  // namespace qvllm
