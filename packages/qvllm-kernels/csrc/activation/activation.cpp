#include "activation/activation.h"

#include "activation/kernels.h"
#include "common/operands.h"

namespace qvllm {
namespace {

// Both halves of a row must start on 16 bytes, hence a multiple of 16 elements for the whole.
void check_silu_and_mul(const Tensor& x) { check_rows("silu_and_mul", "x", x, 16); }

void check_two_inputs(const char* op, const Tensor& x, const char* name, const Tensor& y) {
  check_rows(op, "x", x, 8);
  check_same_rows(op, name, y, "x", x);
}

using Launch = cudaError_t (*)(const TwoInputsArguments&, cudaStream_t);

Tensor two_inputs(const char* op, Launch launch, const Tensor& x, const Tensor& y) {
  Tensor out = torch::stable::new_empty(x, x.sizes());
  if (x.numel() == 0) return out;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Rows xs = rows_of(x), ys = rows_of(y);
  const TwoInputsArguments arguments{xs.owner.const_data_ptr(),
                                     ys.owner.const_data_ptr(),
                                     out.mutable_data_ptr(),
                                     xs.strides,
                                     ys.strides,
                                     xs.count,
                                     static_cast<uint32_t>(x.size(-1) / 8)};
  check_launch(op, launch(arguments, current_stream(x)));
  return out;
}

}  // namespace

Tensor silu_and_mul(const Tensor& x) {
  check_silu_and_mul(x);
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() /= 2;
  Tensor y = torch::stable::new_empty(x, shape);
  if (x.numel() == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Rows rows = rows_of(x);
  const auto* gate = static_cast<const char*>(rows.owner.const_data_ptr());
  const TwoInputsArguments arguments{gate,
                                     gate + shape.back() * 2,
                                     y.mutable_data_ptr(),
                                     rows.strides,
                                     rows.strides,
                                     rows.count,
                                     static_cast<uint32_t>(shape.back() / 8)};
  check_launch("silu_and_mul", launch_silu_and_mul(arguments, current_stream(x)));
  return y;
}

Tensor add(const Tensor& x, const Tensor& y) {
  check_two_inputs("add", x, "y", y);
  return two_inputs("add", launch_add, x, y);
}

Tensor sigmoid_mul(const Tensor& x, const Tensor& gate) {
  check_two_inputs("sigmoid_mul", x, "gate", gate);
  return two_inputs("sigmoid_mul", launch_sigmoid_mul, x, gate);
}

// The other properties are checked first, so that every message can be met without a GPU.
Tensor silu_and_mul_cpu(const Tensor& x) {
  check_silu_and_mul(x);
  refuse_cpu("silu_and_mul");
}

Tensor add_cpu(const Tensor& x, const Tensor& y) {
  check_two_inputs("add", x, "y", y);
  refuse_cpu("add");
}

Tensor sigmoid_mul_cpu(const Tensor& x, const Tensor& gate) {
  check_two_inputs("sigmoid_mul", x, "gate", gate);
  refuse_cpu("sigmoid_mul");
}

}  // namespace qvllm
