// Every operator of the library, by schema, and what runs it on each device. Shapes for fake tensors are stated in Python.
#include <torch/csrc/stable/library.h>

#include "activation/activation.h"
#include "norm/norm.h"

STABLE_TORCH_LIBRARY(qvllm, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps, float weight_offset=0.0) -> Tensor");
  m.def("silu_and_mul(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(qvllm, CUDA, m) {
  m.impl("rms_norm", TORCH_BOX(&qvllm::rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&qvllm::silu_and_mul));
}

// There are no CPU kernels: these name the bad argument, or the device.
STABLE_TORCH_LIBRARY_IMPL(qvllm, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&qvllm::rms_norm_cpu));
  m.impl("silu_and_mul", TORCH_BOX(&qvllm::silu_and_mul_cpu));
}

// The architectures this library was compiled for, as TORCH_CUDA_ARCH_LIST writes them, separated by spaces.
extern "C" __attribute__((visibility("default"))) const char* qvllm_kernels_architectures() { return QVLLM_ARCHITECTURES; }
