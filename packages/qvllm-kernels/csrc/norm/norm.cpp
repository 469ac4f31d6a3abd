#include "norm/norm.h"

#include "common/operands.h"
#include "norm/kernels.h"

namespace qvllm {
namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& weight, double eps, bool float_weight = false) {
  check_rows(op, "x", x, 8);
  const int64_t dim = x.size(-1);
  require(dim <= kNormMaxDim, op, ": the last dimension of x may be at most ", kNormMaxDim, ", got ", dim);
  require(weight.scalar_type() == ScalarType::BFloat16 || (float_weight && weight.scalar_type() == ScalarType::Float), op,
          ": weight must be bfloat16", float_weight ? " or float32" : "", ", got ", weight.scalar_type());
  require(weight.dim() == 1 && weight.size(0) == dim, op, ": weight must be [", dim, "] like the last dimension of x, got ",
          shape_of(weight));
  check_list(op, "weight", weight, dim, "x", x);
  require(eps >= 0, op, ": eps must be zero or positive, got ", eps);
}

void check_add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  check_norm("add_rms_norm", x, weight, eps);
  check_same_rows("add_rms_norm", "residual", residual, "x", x);
}

void check_gated_rms_norm(const Tensor& x, const Tensor& gate, const Tensor& weight, double eps) {
  check_norm("gated_rms_norm", x, weight, eps, true);
  check_same_rows("gated_rms_norm", "gate", gate, "x", x);
}

NormRows size_of(const Tensor& x, const Rows& rows, double eps) {
  const int64_t dim = x.size(-1);
  return {rows.count, static_cast<uint32_t>(dim / 8), static_cast<float>(1.0 / dim), static_cast<float>(eps)};
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double weight_offset) {
  check_norm("rms_norm", x, weight, eps);
  Tensor y = torch::stable::new_empty(x, x.sizes());
  if (x.numel() == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Rows xs = rows_of(x);
  const Tensor w = readable(weight);
  const RmsNormArguments arguments{xs.owner.const_data_ptr(), w.const_data_ptr(),
                                   y.mutable_data_ptr(),      xs.strides,
                                   size_of(x, xs, eps),       static_cast<float>(weight_offset)};
  check_launch("rms_norm", launch_rms_norm(arguments, current_stream(x)));
  return y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                        double weight_offset) {
  check_add_rms_norm(x, residual, weight, eps);
  Tensor y = torch::stable::new_empty(x, x.sizes()), total = torch::stable::new_empty(x, x.sizes());
  if (x.numel() == 0) return {y, total};
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Rows xs = rows_of(x), residuals = rows_of(residual);
  const Tensor w = readable(weight);
  const AddRmsNormArguments arguments{xs.owner.const_data_ptr(),
                                      residuals.owner.const_data_ptr(),
                                      w.const_data_ptr(),
                                      y.mutable_data_ptr(),
                                      total.mutable_data_ptr(),
                                      xs.strides,
                                      residuals.strides,
                                      size_of(x, xs, eps),
                                      static_cast<float>(weight_offset)};
  check_launch("add_rms_norm", launch_add_rms_norm(arguments, current_stream(x)));
  return {y, total};
}

Tensor gated_rms_norm(const Tensor& x, const Tensor& gate, const Tensor& weight, double eps) {
  check_gated_rms_norm(x, gate, weight, eps);
  Tensor y = torch::stable::new_empty(x, x.sizes());
  if (x.numel() == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Rows xs = rows_of(x), gates = rows_of(gate);
  const Tensor w = readable(weight);
  const GatedRmsNormArguments arguments{xs.owner.const_data_ptr(),
                                        gates.owner.const_data_ptr(),
                                        w.const_data_ptr(),
                                        y.mutable_data_ptr(),
                                        xs.strides,
                                        gates.strides,
                                        size_of(x, xs, eps),
                                        weight.scalar_type() == ScalarType::Float};
  check_launch("gated_rms_norm", launch_gated_rms_norm(arguments, current_stream(x)));
  return y;
}

// The other arguments are checked first, so that every message can be met without a GPU.
Tensor rms_norm_cpu(const Tensor& x, const Tensor& weight, double eps, double) {
  check_norm("rms_norm", x, weight, eps);
  refuse_cpu("rms_norm");
}

std::tuple<Tensor, Tensor> add_rms_norm_cpu(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, double) {
  check_add_rms_norm(x, residual, weight, eps);
  refuse_cpu("add_rms_norm");
}

Tensor gated_rms_norm_cpu(const Tensor& x, const Tensor& gate, const Tensor& weight, double eps) {
  check_gated_rms_norm(x, gate, weight, eps);
  refuse_cpu("gated_rms_norm");
}

}  // namespace qvllm
