// What operators with several tensors ask of the others, once the first has been checked, and copies of what lies unaligned.
#pragma once
#include "common/tensors.h"

namespace qvllm {

inline void check_same_device(const char* op, const char* name, const Tensor& y, const char* like, const Tensor& x) {
  require(y.is_cpu() == x.is_cpu() && y.get_device_index() == x.get_device_index(), op, ": ", like, " and ", name,
          " must be on the same device");
}

inline void check_last_contiguous(const char* op, const char* name, const Tensor& x) {
  require(x.stride(-1) == 1 || x.size(-1) == 1, op, ": the last dimension of ", name, " must be contiguous (stride 1), got stride ",
          x.stride(-1), "; call .contiguous() first");
}

// bfloat16, the shape and the device of x, the last dimension contiguous.
inline void check_same_rows(const char* op, const char* name, const Tensor& y, const char* like, const Tensor& x) {
  require(y.scalar_type() == ScalarType::BFloat16, op, ": ", name, " must be bfloat16, got ", y.scalar_type());
  bool same = y.dim() == x.dim();
  for (int64_t i = 0; same && i < x.dim(); ++i) same = y.size(i) == x.size(i);
  require(same, op, ": ", name, " must have the shape of ", like, ", ", shape_of(x), ", got ", shape_of(y));
  check_last_contiguous(op, name, y);
  check_same_device(op, name, y, like, x);
}

// [size], contiguous, on the device of x; the dtype is the caller's business.
inline void check_list(const char* op, const char* name, const Tensor& y, int64_t size, const char* like, const Tensor& x) {
  require(y.dim() == 1 && y.size(0) == size, op, ": ", name, " must be [", size, "], got ", shape_of(y));
  require(size <= 1 || y.stride(0) == 1, op, ": ", name, " must be contiguous, got stride ", y.stride(0),
          "; call .contiguous() first");
  check_same_device(op, name, y, like, x);
}

// Whether kernels can read every row of x 16 bytes at a time where it lies.
inline bool rows_aligned(const Tensor& x, int64_t elements_in_16_bytes = 8) {
  bool direct = aligned(x);
  for (int64_t i = 0; i + 1 < x.dim(); ++i) direct = direct && (x.size(i) == 1 || x.stride(i) % elements_in_16_bytes == 0);
  return direct;
}

inline Tensor readable(const Tensor& x, int64_t elements_in_16_bytes = 8) {
  return rows_aligned(x, elements_in_16_bytes) ? x : contiguous_copy(x);
}

}  // namespace qvllm
