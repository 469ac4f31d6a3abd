// The keys and values that a warp of decode attention reads, as a stream through shared memory of its own.
#pragma once
#include "attention/decode_units.cuh"
#include "attention/tile_layout.cuh"
#include "common/async_copy.cuh"

namespace qvllm {

// A ring of kEntries entries: the keys of a tile, its values, the keys of the next tile, and so on through all units of the
// block, so that memory stays busy where one unit ends and the next begins. No barrier between warps is needed.
template <int kHeadDim, int kEntries>
class KeyStream {
 public:
  static constexpr int kEntryBytes = kTileKeys * kHeadDim * 2;
  static constexpr int kRingBytes = kEntries * kEntryBytes;

  // `ring` is the shared address of kRingBytes for this warp.
  __device__ __forceinline__ KeyStream(const DecodeArguments& a, uint32_t ring) : a_(a), ring_(ring) {
    // The block of the first key follows from the unit alone: it is read together with the length, not after it.
    const Unit likely = unit_at(a, blockIdx.x);
    const int place = a.cache.block_size.quotient(likely.split * kChunkKeys + threadIdx.x / 32 * kTileKeys);
    if (a.cache.table_width > 0) first_block_ = table(likely.seq)[min(place, a.cache.table_width - 1)];
    unit_ = first_ = next_unit(a, blockIdx.x);
    tiles_ = warp_tiles(unit_);
    if (tiles_.count > 0 && unit_.index != likely.index) read_first_block();
    if (tiles_.count > 0) read_blocks();
  }

  // The block's first unit, which has been looked up already.
  __device__ __forceinline__ const Unit& first_unit() const { return first_; }

  // Waits for the next entry and returns its shared address. Lanes may read it until the warp's next call.
  __device__ __forceinline__ uint32_t next() {
    __syncwarp();
    for (; free_ > 0; --free_) refill();
    free_ = 1;
    wait_for_copies<kEntries - 1>();
    __syncwarp();
    const uint32_t entry = ring_ + read_ * kEntryBytes;
    read_ = read_ + 1 == kEntries ? 0 : read_ + 1;
    return entry;
  }

 private:
  // Starts the copy of an entry into the place of one that no lane reads any more.
  __device__ __forceinline__ void refill() {
    if (tile_ == tiles_.count) advance();
    if (tile_ < tiles_.count) {
      if (!values_) locate();
      copy(ring_ + written_ * kEntryBytes, values_ ? v_ : k_);
      tile_ += values_;
      values_ = !values_;
    }
    commit_copies();  // also where nothing is left, so that next always waits for the right one
    written_ = written_ + 1 == kEntries ? 0 : written_ + 1;
  }

  // Moves on to the next unit in which this warp has keys.
  __device__ __forceinline__ void advance() {
    tile_ = tiles_.count = 0;
    while (tiles_.count == 0 && unit_.index < a_.units) {
      unit_ = next_unit(a_, unit_.index + gridDim.x);
      tiles_ = warp_tiles(unit_);
    }
    if (tiles_.count == 0) return;
    read_first_block();
    read_blocks();
  }

  __device__ __forceinline__ const int32_t* table(int seq) const { return a_.cache.block_tables + seq * a_.cache.table_stride; }

  __device__ __forceinline__ void read_first_block() {
    first_block_ = table(unit_.seq)[a_.cache.block_size.quotient(tiles_.first_key)];
  }

  // Lane i takes the block number of tile i of the next 32.
  __device__ __forceinline__ void read_blocks() {
    const int tile = tile_ + threadIdx.x % 32, key = tiles_.key(tile), place = a_.cache.block_size.quotient(key);
    row_in_block_ = key - place * a_.cache.block_size.value;
    if (tile < tiles_.count) block_ = table(unit_.seq)[place];
  }

  // Finds the current tile in both caches.
  __device__ __forceinline__ void locate() {
    if (tile_ > 0 && tile_ % 32 == 0) read_blocks();
    // The first number has a register of its own, since it is there earlier than the others.
    int64_t block = first_block_;
    if (tile_ > 0) block = __shfl_sync(0xffffffffu, block_, tile_ % 32);
    const int64_t row = __shfl_sync(0xffffffffu, row_in_block_, tile_ % 32) * TileLayout<kHeadDim>::kRowBytes;
    k_ = static_cast<const char*>(a_.cache.k) + block * a_.cache.k_block_bytes + unit_.kv_head * a_.cache.k_head_bytes + row;
    v_ = static_cast<const char*>(a_.cache.v) + block * a_.cache.v_block_bytes + unit_.kv_head * a_.cache.v_head_bytes + row;
    rows_ = unit_.kv_len - tiles_.key(tile_);
  }

  // Rows past the sequence's end become zeros: what lies there may be NaN, and zero times NaN would not be zero.
  __device__ __forceinline__ void copy(uint32_t entry, const char* source) const {
    using Layout = TileLayout<kHeadDim>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTileKeys * Layout::kVectors / 32; ++i) {
      const int vector = i * 32 + lane, row = vector / Layout::kVectors;
      copy_16_bytes(entry + Layout::offset(row, vector % Layout::kVectors), source + vector * 16, row < rows_);
    }
  }

  const DecodeArguments& a_;
  const uint32_t ring_;
  int read_ = 0, written_ = 0, free_ = kEntries;  // places in the ring, and how many are free
  Unit unit_, first_;                             // the unit that is being copied, and the block's first
  WarpTiles tiles_;
  int tile_ = 0;  // of tiles_
  bool values_ = false;
  int first_block_ = 0, block_ = 0, row_in_block_ = 0, rows_ = 0;
  const char* k_ = nullptr;
  const char* v_ = nullptr;
};

}  // namespace qvllm
