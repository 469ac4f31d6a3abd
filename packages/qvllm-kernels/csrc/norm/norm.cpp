#include "norm/norm.h"

#include "common/tensors.h"
#include "norm/kernels.h"

namespace qvllm {
namespace {

void check_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_rows("rms_norm", "x", x, 8);
  const int64_t dim = x.size(-1);
  require(dim <= kRmsNormMaxDim, "rms_norm: the last dimension of x may be at most ", kRmsNormMaxDim, ", got ", dim);
  require(weight.scalar_type() == ScalarType::BFloat16, "rms_norm: weight must be bfloat16, got ", weight.scalar_type());
  require(weight.dim() == 1 && weight.size(0) == dim, "rms_norm: weight must be [", dim, "] like the last dimension of x, got ",
          shape_of(weight));
  require(weight.stride(0) == 1, "rms_norm: weight must be contiguous, got stride ", weight.stride(0), "; call .contiguous() first");
  require(weight.is_cpu() == x.is_cpu() && weight.get_device_index() == x.get_device_index(),
          "rms_norm: x and weight must be on the same device");
  require(eps >= 0, "rms_norm: eps must be zero or positive, got ", eps);
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double weight_offset) {
  check_rms_norm(x, weight, eps);
  Tensor y = torch::stable::new_empty(x, x.sizes());
  if (x.numel() == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Rows rows = rows_of(x);
  const Tensor w = aligned(weight) ? weight : contiguous_copy(weight);
  const RmsNormArguments arguments{
      rows.owner.const_data_ptr(),      w.const_data_ptr(),      y.mutable_data_ptr(),
      rows.strides,                     rows.count,              static_cast<uint32_t>(x.size(-1) / 8),
      static_cast<float>(eps),          static_cast<float>(weight_offset)};
  check_launch("rms_norm", launch_rms_norm(arguments, current_stream(x)));
  return y;
}

// The other arguments are checked first, so that every message can be met without a GPU.
Tensor rms_norm_cpu(const Tensor& x, const Tensor& weight, double eps, double) {
  check_rms_norm(x, weight, eps);
  refuse_cpu("rms_norm");
}

}  // namespace qvllm
