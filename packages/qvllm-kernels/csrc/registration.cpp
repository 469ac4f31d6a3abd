// Every operator of the library, by schema, and what runs it on each device. Shapes for fake tensors are stated in Python.
#include <torch/csrc/stable/library.h>

#include "activation/activation.h"
#include "attention/attention.h"
#include "norm/norm.h"

STABLE_TORCH_LIBRARY(qvllm, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps, float weight_offset=0.0) -> Tensor");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def(
      "decode_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_tables, Tensor kv_lens, float scale, "
      "Tensor(a!)? workspace=None, int splits=0) -> Tensor");
  m.def("decode_workspace_size(int max_seqs, int num_q_heads, int num_kv_heads, int head_dim, int max_kv_len) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(qvllm, CUDA, m) {
  m.impl("rms_norm", TORCH_BOX(&qvllm::rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&qvllm::silu_and_mul));
  m.impl("decode_attention", TORCH_BOX(&qvllm::decode_attention));
}

// There are no CPU kernels: these name the bad argument, or the device.
STABLE_TORCH_LIBRARY_IMPL(qvllm, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&qvllm::rms_norm_cpu));
  m.impl("silu_and_mul", TORCH_BOX(&qvllm::silu_and_mul_cpu));
  m.impl("decode_attention", TORCH_BOX(&qvllm::decode_attention_cpu));
}

// What takes no tensor.
STABLE_TORCH_LIBRARY_IMPL(qvllm, CompositeExplicitAutograd, m) {
  m.impl("decode_workspace_size", TORCH_BOX(&qvllm::decode_workspace_size));
}

// The architectures this library was compiled for, as TORCH_CUDA_ARCH_LIST writes them, separated by spaces.
extern "C" __attribute__((visibility("default"))) const char* qvllm_kernels_architectures() { return QVLLM_ARCHITECTURES; }
