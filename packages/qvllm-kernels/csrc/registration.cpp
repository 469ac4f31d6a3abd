// Every operator of the library, by schema, and what runs it on each device. Shapes for fake tensors are stated in Python.
#include <torch/csrc/stable/library.h>

#include "activation/activation.h"
#include "attention/attention.h"
#include "attention_input/attention_input.h"
#include "cache/cache.h"
#include "embedding/embedding.h"
#include "norm/norm.h"
#include "rotary/rotary.h"

STABLE_TORCH_LIBRARY(qvllm, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps, float weight_offset=0.0) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, float weight_offset=0.0) -> (Tensor, Tensor)");
  m.def("gated_rms_norm(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("add(Tensor x, Tensor y) -> Tensor");
  m.def("sigmoid_mul(Tensor x, Tensor gate) -> Tensor");
  m.def("embedding(Tensor token_ids, Tensor weight, int first_id=0) -> Tensor");
  m.def("rotary_embedding(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)");
  m.def("store_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping) -> ()");
  m.def(
      "qk_norm_rope_store(Tensor qkv, Tensor q_weight, Tensor k_weight, float eps, float weight_offset, Tensor cos, Tensor sin, "
      "Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, int num_q_heads, int num_kv_heads) -> Tensor");
  m.def(
      "decode_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_tables, Tensor kv_lens, float scale, "
      "Tensor(a!)? workspace=None, int splits=0) -> Tensor");
  m.def("decode_workspace_size(int max_seqs, int num_q_heads, int num_kv_heads, int head_dim, int max_kv_len) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(qvllm, CUDA, m) {
  m.impl("rms_norm", TORCH_BOX(&qvllm::rms_norm));
  m.impl("add_rms_norm", TORCH_BOX(&qvllm::add_rms_norm));
  m.impl("gated_rms_norm", TORCH_BOX(&qvllm::gated_rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&qvllm::silu_and_mul));
  m.impl("add", TORCH_BOX(&qvllm::add));
  m.impl("sigmoid_mul", TORCH_BOX(&qvllm::sigmoid_mul));
  m.impl("embedding", TORCH_BOX(&qvllm::embedding));
  m.impl("rotary_embedding", TORCH_BOX(&qvllm::rotary_embedding));
  m.impl("store_kv", TORCH_BOX(&qvllm::store_kv));
  m.impl("qk_norm_rope_store", TORCH_BOX(&qvllm::qk_norm_rope_store));
  m.impl("decode_attention", TORCH_BOX(&qvllm::decode_attention));
}

// There are no CPU kernels: these name the bad argument, or the device.
STABLE_TORCH_LIBRARY_IMPL(qvllm, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&qvllm::rms_norm_cpu));
  m.impl("add_rms_norm", TORCH_BOX(&qvllm::add_rms_norm_cpu));
  m.impl("gated_rms_norm", TORCH_BOX(&qvllm::gated_rms_norm_cpu));
  m.impl("silu_and_mul", TORCH_BOX(&qvllm::silu_and_mul_cpu));
  m.impl("add", TORCH_BOX(&qvllm::add_cpu));
  m.impl("sigmoid_mul", TORCH_BOX(&qvllm::sigmoid_mul_cpu));
  m.impl("embedding", TORCH_BOX(&qvllm::embedding_cpu));
  m.impl("rotary_embedding", TORCH_BOX(&qvllm::rotary_embedding_cpu));
  m.impl("store_kv", TORCH_BOX(&qvllm::store_kv_cpu));
  m.impl("qk_norm_rope_store", TORCH_BOX(&qvllm::qk_norm_rope_store_cpu));
  m.impl("decode_attention", TORCH_BOX(&qvllm::decode_attention_cpu));
}

// What takes no tensor.
STABLE_TORCH_LIBRARY_IMPL(qvllm, CompositeExplicitAutograd, m) {
  m.impl("decode_workspace_size", TORCH_BOX(&qvllm::decode_workspace_size));
}

// The architectures this library was compiled for, as TORCH_CUDA_ARCH_LIST writes them, separated by spaces.
extern "C" __attribute__((visibility("default"))) const char* qvllm_kernels_architectures() { return QVLLM_ARCHITECTURES; }
