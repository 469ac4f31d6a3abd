// One warp's attention of up to eight query heads over tiles of sixteen keys, with tensor cores and online softmax.
#pragma once
#include "attention/tile_layout.cuh"
#include "common/exp2.cuh"
#include "common/mma.cuh"

namespace qvllm {

// The products are transposed: keys times queries, and values times weights, so that keys and elements of a head fill the
// sixteen rows of a product and the few query heads its eight columns. Columns without a query head hold values that mean
// nothing, but they are finite, and stay in their column.
//
// In every 16 x 8 product lane 4 * row + pair holds columns (query heads) 2 * pair and 2 * pair + 1, in rows row and row + 8.
template <int kHeadDim>
struct WarpAttention {
  using Layout = TileLayout<kHeadDim>;
  static constexpr int kSteps = kHeadDim / 16;

  uint32_t q[kSteps][2];
  float out[kSteps][4];  // not yet divided by the sum
  float highest[2];      // of the scores so far, in powers of two
  float total[2];        // of the weights; of this lane's rows only until finish

  // `q` points to the first of `heads` query heads.
  __device__ __forceinline__ void start(const __nv_bfloat16* queries, int64_t head_stride, int heads) {
    const int lane = threadIdx.x % 32, head = lane / 4;
    const __nv_bfloat16* row = queries + head * head_stride + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        q[step][half] = head < heads ? *reinterpret_cast<const uint32_t*>(row + step * 16 + half * 8) : 0;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) out[step][i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) highest[i] = -CUDART_INF_F, total[i] = 0.0f;
  }

  // Scores of a tile of keys, times the scale; of rows past `rows`, minus infinity.
  __device__ __forceinline__ void scores(float (&s)[4], uint32_t keys, float scale_log2, int rows) const {
    const int lane = threadIdx.x % 32;
    const uint32_t address = Layout::offset(lane % 16, lane / 16);
    float sums[2][4] = {};  // two, since each product waits for the one before it
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t k[4];
      load_tiles(k, keys + (address ^ step * 32));
      multiply_add(sums[step % 2], k, q[step][0], q[step][1]);
    }
    const int row = lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = row + i / 2 * 8 < rows ? (sums[0][i] + sums[1][i]) * scale_log2 : -CUDART_INF_F;
    }
  }

  // Turns scores, at least one of them finite in each column, into weights and rescales what has been summed so far.
  __device__ __forceinline__ void weigh(float (&s)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float highest_now = fmaxf(s[i], s[i + 2]);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        highest_now = fmaxf(highest_now, __shfl_xor_sync(0xffffffffu, highest_now, distance));
      highest_now = fmaxf(highest_now, highest[i]);
      const float shrink = exp2_fast(highest[i] - highest_now);
      highest[i] = highest_now;
      s[i] = exp2_fast(s[i] - highest_now);
      s[i + 2] = exp2_fast(s[i + 2] - highest_now);
      total[i] = total[i] * shrink + s[i] + s[i + 2];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) out[step][i] *= shrink, out[step][i + 2] *= shrink;
    }
  }

  // Adds a tile of values, weighted.
  __device__ __forceinline__ void add_values(const float (&weights)[4], uint32_t values) {
    const int lane = threadIdx.x % 32;
    const uint32_t upper = transposed(packed_bf16(weights[0], weights[1]));
    const uint32_t lower = transposed(packed_bf16(weights[2], weights[3]));
    const uint32_t address = Layout::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t v[4];
      load_tiles_transposed(v, values + (address ^ step * 32));
      multiply_add(out[step], v, upper, lower);
    }
  }

  // Completes the sums of weights.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) total[i] += __shfl_xor_sync(0xffffffffu, total[i], distance);
  }

  // Writes the weighted sums of the first `heads` columns to shared memory, [heads, head_dim].
  __device__ __forceinline__ void write(float* target, int heads) const {
    const int lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int head = lane % 4 * 2 + column;
      if (head >= heads) continue;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        target[head * kHeadDim + step * 16 + row] = out[step][column];
        target[head * kHeadDim + step * 16 + row + 8] = out[step][column + 2];
      }
    }
  }
};

}  // namespace qvllm
