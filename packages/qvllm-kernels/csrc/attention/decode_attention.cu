// Attention of one query per sequence over the paged cache. Each key and value is read from memory once for all query heads
// that share it; nothing is computed that would take longer than reading it.
#include "attention/decode_merge.cuh"
#include "attention/decode_warp.cuh"
#include "attention/kernels.h"
#include "attention/key_stream.cuh"
#include "common/launch.cuh"

namespace qvllm {
namespace {

// 64 to 96 KB on their way to a block, so that two blocks keep a multiprocessor's share of the memory bandwidth busy.
template <int kHeadDim>
inline constexpr int kEntries = kHeadDim == 256 ? 3 : kHeadDim == 128 ? 6 : 8;

// A block works through units of its own, in steps of the grid. Each warp attends to its tiles of the unit's keys, then the
// block merges the warps, and the last block of an item adds its parts.
template <int kHeadDim>
__global__ void __launch_bounds__(kDecodeWarps * 32, 2) decode_attention_kernel(const __grid_constant__ DecodeArguments a) {
  using Stream = KeyStream<kHeadDim, kEntries<kHeadDim>>;
  static_assert(Stream::kEntryBytes == kHeadsAtOnce * kHeadDim * sizeof(float), "sums take the place of values");
  extern __shared__ __align__(1024) unsigned char rings[];
  __shared__ WarpResults results;
  wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned char* ring = rings + warp * Stream::kRingBytes;
  Stream stream(a, shared_address(ring));
  for (Unit unit = stream.first_unit(); unit.index < a.units; unit = next_unit(a, unit.index + gridDim.x)) {
    const int heads = min(a.group - unit.slice * kHeadsAtOnce, kHeadsAtOnce);
    const int64_t head = int64_t{unit.kv_head} * a.group + unit.slice * kHeadsAtOnce;
    WarpAttention<kHeadDim> attention;
    attention.start(static_cast<const __nv_bfloat16*>(a.q) + unit.seq * a.q_seq_stride + head * a.q_head_stride, a.q_head_stride, heads);
    const WarpTiles tiles = warp_tiles(unit);
    float weights[4];
    uint32_t entry = 0;
#pragma unroll 1
    for (int i = 0; i < 2 * tiles.count; ++i) {
      entry = stream.next();
      if (i % 2 == 0) {
        attention.scores(weights, entry, a.scale_log2, unit.kv_len - tiles.key(i / 2));
        attention.weigh(weights);
      } else {
        attention.add_values(weights, entry);
      }
    }
    attention.finish();
    // The values that have just been used make room for the warp's sums, until they are merged.
    float* sums = reinterpret_cast<float*>(ring + (entry - shared_address(ring)));
    __syncwarp();
    if (tiles.count > 0) attention.write(sums, heads);
    if (lane < 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        results.highest[warp][lane * 2 + i] = attention.highest[i];
        results.total[warp][lane * 2 + i] = attention.total[i];
      }
      if (lane == 0) results.sums[warp] = sums;
    }
    __syncthreads();
    merge_warps<kHeadDim>(a, unit, heads, results);
    __syncthreads();
    if (unit.parts > 1 && is_last_part(a, unit)) combine_parts<kHeadDim>(a, unit, heads);
  }
}

template <int kHeadDim>
cudaError_t launch_head_dim(int blocks, const DecodeArguments& a, cudaStream_t stream) {
  constexpr unsigned kSharedBytes = kDecodeWarps * KeyStream<kHeadDim, kEntries<kHeadDim>>::kRingBytes;
  return launch(decode_attention_kernel<kHeadDim>, blocks, kDecodeWarps * 32, stream, a, kSharedBytes);
}

}  // namespace

cudaError_t launch_decode_attention(int head_dim, int blocks, const DecodeArguments& a, cudaStream_t stream) {
  switch (head_dim) {
    case 32: return launch_head_dim<32>(blocks, a, stream);
    case 64: return launch_head_dim<64>(blocks, a, stream);
    case 128: return launch_head_dim<128>(blocks, a, stream);
    case 256: return launch_head_dim<256>(blocks, a, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace qvllm
