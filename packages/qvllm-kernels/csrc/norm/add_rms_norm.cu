// Residual stream: total = x + residual, rounded; y = rms_norm(total). The sum is normalised as the next layer will read it.
#include "common/launch.cuh"
#include "common/prefetch.cuh"
#include "norm/normalise.cuh"
#include "norm/row_shape.cuh"

namespace qvllm {
namespace {

__device__ __forceinline__ Bf16x8 sum(const Bf16x8& x, const Bf16x8& residual) {
  Float8 total = to_float(x);
  const Float8 other = to_float(residual);
#pragma unroll
  for (int k = 0; k < kVectorWidth; ++k) total.at[k] += other.at[k];
  return to_bf16(total);
}

template <typename Shape, bool kRoundFirst>
__global__ void __launch_bounds__(Shape::kMaxThreads) add_rms_norm_kernel(AddRmsNormArguments a) {
  constexpr int kRows = Shape::kRows, kVectors = Shape::kVectors;
  const auto* weight = static_cast<const Bf16x8*>(a.weight);
  if (blockIdx.x == 0) prefetch_to_l2(weight, a.size.vectors * sizeof(Bf16x8));
  const Bf16x8 *x[kRows], *residual[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const Bf16x8*>(a.x) + a.x_rows.start(Shape::row(r));
    residual[r] = static_cast<const Bf16x8*>(a.residual) + a.residual_rows.start(Shape::row(r));
  }
  wait_for_previous_kernel();

  // Threads past the last row stay for the sums, with nothing to load or store.
  Bf16x8 weights[kVectors] = {}, values[kRows][kVectors] = {}, residuals[kRows][kVectors] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const uint32_t i = Shape::column(j);
    if (i >= a.size.vectors) continue;
    weights[j] = weight[i];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (Shape::row(r) < a.size.rows) values[r][j] = x[r][i], residuals[r][j] = residual[r][i];
    }
  }

  float squares[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      values[r][j] = sum(values[r][j], residuals[r][j]);
      squares[r] += sum_of_squares(to_float(values[r][j]));
    }
  }
  Shape::row_sums(squares);

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float scale = inverse_rms(squares[r], a.size);
    const int64_t start = int64_t{Shape::row(r)} * a.size.vectors;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint32_t i = Shape::column(j);
      if (i >= a.size.vectors || Shape::row(r) >= a.size.rows) continue;
      static_cast<Bf16x8*>(a.total)[start + i] = values[r][j];
      const Float8 y = normalised<kRoundFirst>(to_float(values[r][j]), scale, to_float(weights[j]), a.weight_offset);
      static_cast<Bf16x8*>(a.y)[start + i] = to_bf16(y);
    }
  }
}

}  // namespace

cudaError_t launch_add_rms_norm(const AddRmsNormArguments& a, cudaStream_t stream) {
  return with_row_shape(a.size, [&](auto shape) {
    using Shape = decltype(shape);
    auto* kernel = a.weight_offset == 0.0f ? add_rms_norm_kernel<Shape, true> : add_rms_norm_kernel<Shape, false>;
    return launch(kernel, Shape::blocks(a.size), Shape::threads(a.size), stream, a);
  });
}

}  // namespace qvllm
