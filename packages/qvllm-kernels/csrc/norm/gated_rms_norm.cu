// The output norm of Gated DeltaNet: y = rms_norm(x, weight) * silu(gate), rounded after the norm and at the end.
#include "common/launch.cuh"
#include "common/prefetch.cuh"
#include "common/sigmoid.cuh"
#include "norm/normalise.cuh"
#include "norm/row_shape.cuh"

namespace qvllm {
namespace {

// As they lie in memory, since a conversion would wait for them before the other loads are issued.
__device__ __forceinline__ Bf16x8 load_weights(const Bf16x8* weights) { return *weights; }
__device__ __forceinline__ Float8 load_weights(const Float8* weights) { return load_float8(weights->at); }
__device__ __forceinline__ const Float8& to_float(const Float8& values) { return values; }

// Weights: Bf16x8 or Float8, eight elements of the weight.
template <typename Shape, typename Weights>
__global__ void __launch_bounds__(Shape::kMaxThreads) gated_rms_norm_kernel(GatedRmsNormArguments a) {
  constexpr int kRows = Shape::kRows, kVectors = Shape::kVectors;
  const auto* weight = static_cast<const Weights*>(a.weight);
  if (blockIdx.x == 0) prefetch_to_l2(weight, a.size.vectors * sizeof(Weights));
  const Bf16x8 *x[kRows], *gate[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const Bf16x8*>(a.x) + a.x_rows.start(Shape::row(r));
    gate[r] = static_cast<const Bf16x8*>(a.gate) + a.gate_rows.start(Shape::row(r));
  }
  wait_for_previous_kernel();

  // Threads past the last row stay for the sums, with nothing to load or store.
  Weights weights[kVectors] = {};
  Bf16x8 values[kRows][kVectors] = {}, gates[kRows][kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const uint32_t i = Shape::column(j);
    if (i >= a.size.vectors) continue;
    weights[j] = load_weights(weight + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (Shape::row(r) < a.size.rows) values[r][j] = x[r][i], gates[r][j] = gate[r][i];
    }
  }

  float squares[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) squares[r] += sum_of_squares(to_float(values[r][j]));
  }
  Shape::row_sums(squares);

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float scale = inverse_rms(squares[r], a.size);
    auto* y = static_cast<Bf16x8*>(a.y) + int64_t{Shape::row(r)} * a.size.vectors;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint32_t i = Shape::column(j);
      if (i >= a.size.vectors || Shape::row(r) >= a.size.rows) continue;
      Float8 out = normalised<true>(to_float(values[r][j]), scale, to_float(weights[j]), 0.0f);
      const Float8 g = to_float(gates[r][j]);
#pragma unroll
      for (int k = 0; k < kVectorWidth; ++k) out.at[k] *= silu(g.at[k]);
      y[i] = to_bf16(out);
    }
  }
}

}  // namespace

cudaError_t launch_gated_rms_norm(const GatedRmsNormArguments& a, cudaStream_t stream) {
  return with_row_shape(a.size, [&](auto shape) {
    using Shape = decltype(shape);
    auto* kernel = a.float_weight ? gated_rms_norm_kernel<Shape, Float8> : gated_rms_norm_kernel<Shape, Bf16x8>;
    return launch(kernel, Shape::blocks(a.size), Shape::threads(a.size), stream, a);
  });
}

}  // namespace qvllm
