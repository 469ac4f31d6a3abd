// What every operator asks of its tensors before a kernel sees a pointer.
#pragma once
#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <sstream>
#include <stdexcept>

#include "common/row_strides.h"

// Only libtorch_cuda.so has this function. Weak, so that the library also loads under a CPU-only torch.
#pragma weak aoti_torch_get_current_cuda_stream

namespace qvllm {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// torch's own check macro puts the path of the source file into the message; users should read the sentence alone.
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

inline std::string shape_of(const Tensor& tensor) {
  std::ostringstream text;
  text << "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text << (i ? ", " : "") << tensor.size(i);
  text << "]";
  return text.str();
}

[[noreturn]] inline void refuse_cpu(const char* op) {
  require(false, op, ": qvllm_kernels runs on CUDA tensors only, got CPU tensors; move them to a GPU or use a CPU implementation");
  __builtin_unreachable();
}

// bfloat16, at least one dimension, the last one contiguous and a multiple of `multiple`.
inline void check_rows(const char* op, const char* name, const Tensor& x, int64_t multiple) {
  require(x.scalar_type() == ScalarType::BFloat16, op, ": ", name, " must be bfloat16, got ", x.scalar_type());
  require(x.dim() >= 1, op, ": ", name, " must have at least one dimension, got a scalar");
  const int64_t last = x.size(-1);
  require(last > 0 && last % multiple == 0, op, ": the last dimension of ", name, " must be a positive multiple of ", multiple,
          ", got shape ", shape_of(x));
  require(x.stride(-1) == 1, op, ": the last dimension of ", name, " must be contiguous (stride 1), got stride ", x.stride(-1),
          "; call .contiguous() first");
  const int64_t rows = x.numel() / last;
  require(rows <= std::numeric_limits<int32_t>::max(), op, ": ", name, " has ", rows, " rows, at most 2147483647 are supported");
}

// A tensor as rows that kernels can read 16 bytes at a time.
struct Rows {
  Tensor owner;  // keeps a copy alive until the launch
  uint32_t count;
  RowStrides strides;
};

inline Tensor contiguous_copy(const Tensor& x) {
  Tensor copy = torch::stable::new_empty(x, x.sizes());
  torch::stable::copy_(copy, x);
  return copy;
}

inline bool aligned(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; }

// Rows of `x` in place where two strides, each a multiple of 8 elements, and a 16-byte aligned start describe them; else
// rows of a contiguous copy. `x` has passed check_rows and is not empty.
inline Rows rows_of(const Tensor& x) {
  int64_t sizes[2] = {1, 1}, strides[2] = {0, 0};  // innermost first
  int groups = 0;
  bool direct = aligned(x);
  for (int64_t i = x.dim() - 2; direct && i >= 0; --i) {
    const int64_t size = x.size(i), stride = x.stride(i);
    if (size == 1) continue;
    if (groups > 0 && stride == sizes[groups - 1] * strides[groups - 1]) {
      sizes[groups - 1] *= size;
    } else if (groups == 2 || stride % 8 != 0) {
      direct = false;
    } else {
      sizes[groups] = size;
      strides[groups++] = stride;
    }
  }
  if (!direct) return rows_of(contiguous_copy(x));
  const auto count = static_cast<uint32_t>(sizes[0] * sizes[1]);
  return {x, count, {static_cast<uint32_t>(sizes[0]), strides[1] / 8, strides[0] / 8}};
}

inline cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

inline void check_launch(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // a refused launch must not be reported again by the next call
  require(false, op, ": the kernel was not launched: ", cudaGetErrorString(error));
}

}  // namespace qvllm
