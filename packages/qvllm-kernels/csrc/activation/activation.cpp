#include "activation/activation.h"

#include "activation/kernels.h"
#include "common/tensors.h"

namespace qvllm {
namespace {

// Both halves of a row must start on 16 bytes, hence a multiple of 16 elements for the whole.
void check_silu_and_mul(const Tensor& x) { check_rows("silu_and_mul", "x", x, 16); }

}  // namespace

Tensor silu_and_mul(const Tensor& x) {
  check_silu_and_mul(x);
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() /= 2;
  Tensor y = torch::stable::new_empty(x, shape);
  if (x.numel() == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Rows rows = rows_of(x);
  const SiluAndMulArguments arguments{rows.owner.const_data_ptr(), y.mutable_data_ptr(), rows.strides, rows.count,
                                      static_cast<uint32_t>(shape.back() / 8)};
  check_launch("silu_and_mul", launch_silu_and_mul(arguments, current_stream(x)));
  return y;
}

// The other properties are checked first, so that every message can be met without a GPU.
Tensor silu_and_mul_cpu(const Tensor& x) {
  check_silu_and_mul(x);
  refuse_cpu("silu_and_mul");
}

}  // namespace qvllm
