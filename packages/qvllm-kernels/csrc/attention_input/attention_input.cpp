#include "attention_input/attention_input.h"

#include "attention_input/kernels.h"
#include "cache/arguments.h"
#include "rotary/arguments.h"

namespace qvllm {
namespace {

constexpr const char* kOp = "qk_norm_rope_store";
constexpr int64_t kMostHeads = 1 << 20;  // so that no product of sizes overflows

void check_head_weight(const char* name, const Tensor& weight, int64_t head_dim, const Tensor& qkv) {
  require(weight.scalar_type() == ScalarType::BFloat16, kOp, ": ", name, " must be bfloat16, got ", weight.scalar_type());
  require(weight.dim() == 1, kOp, ": ", name, " must be [head_dim], got ", shape_of(weight));
  check_list(kOp, name, weight, head_dim, "qkv", qkv);
}

void check_projection(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps, int64_t q_heads,
                      int64_t kv_heads) {
  check_rows(kOp, "qkv", qkv, 8);
  const int64_t head_dim = q_weight.dim() == 1 ? q_weight.size(0) : 0;
  check_head_weight("q_weight", q_weight, head_dim, qkv);
  check_head_weight("k_weight", k_weight, head_dim, qkv);
  check_head_dim(kOp, head_dim);
  require(q_heads > 0 && kv_heads > 0 && q_heads <= kMostHeads && kv_heads <= kMostHeads, kOp,
          ": there must be heads, got num_q_heads ", q_heads, " and num_kv_heads ", kv_heads);
  const int64_t width = (q_heads + 2 * kv_heads) * head_dim;
  require(qkv.dim() == 2 && qkv.size(1) == width, kOp, ": qkv must be [tokens, ", width, "], that is ", q_heads, " + 2 * ",
          kv_heads, " heads of ", head_dim, ", got ", shape_of(qkv));
  require(eps >= 0, kOp, ": eps must be zero or positive, got ", eps);
}

void check_all(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps, const Tensor& cos, const Tensor& sin,
               const Tensor& k_cache, const Tensor& v_cache, const Tensor& slot_mapping, int64_t q_heads, int64_t kv_heads) {
  check_projection(qkv, q_weight, k_weight, eps, q_heads, kv_heads);
  const int64_t tokens = qkv.size(0), head_dim = q_weight.size(0);
  check_tables(kOp, cos, sin, tokens, head_dim, "qkv", qkv);
  check_cache_writes(kOp, k_cache, v_cache, slot_mapping, tokens, kv_heads, head_dim, "qkv", qkv);
}

}  // namespace

Tensor qk_norm_rope_store(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps, double weight_offset,
                          const Tensor& cos, const Tensor& sin, Tensor k_cache, Tensor v_cache, const Tensor& slot_mapping,
                          int64_t num_q_heads, int64_t num_kv_heads) {
  check_all(qkv, q_weight, k_weight, eps, cos, sin, k_cache, v_cache, slot_mapping, num_q_heads, num_kv_heads);
  const int64_t tokens = qkv.size(0), head_dim = q_weight.size(0);
  Tensor q = torch::stable::new_empty(qkv, {tokens, num_q_heads, head_dim});
  if (tokens == 0) return q;
  const torch::stable::accelerator::DeviceGuard guard(qkv.get_device_index());
  const Tensor rows = readable(qkv), q_weights = readable(q_weight), k_weights = readable(k_weight);
  const Tensor cosines = readable(cos, kFloatsIn16Bytes), sines = readable(sin, kFloatsIn16Bytes);
  QkNormRopeStoreArguments a{};
  a.qkv = rows.const_data_ptr();
  a.q_weight = q_weights.const_data_ptr();
  a.k_weight = k_weights.const_data_ptr();
  a.q = q.mutable_data_ptr();
  a.tables = rotary_tables(cosines, sines);
  a.cache = cache_writer(k_cache, v_cache);
  a.slots = static_cast<const int64_t*>(slot_mapping.const_data_ptr());
  a.token_stride = rows.stride(0) / 8;
  a.size = head_size(head_dim, cos);
  a.tokens = static_cast<uint32_t>(tokens);
  a.q_heads = static_cast<uint32_t>(num_q_heads);
  a.kv_heads = static_cast<uint32_t>(num_kv_heads);
  a.inverse_dim = static_cast<float>(1.0 / head_dim);
  a.eps = static_cast<float>(eps);
  a.weight_offset = static_cast<float>(weight_offset);
  check_launch(kOp, launch_qk_norm_rope_store(a, current_stream(qkv)));
  return q;
}

// The arguments are checked first, so that every message can be met without a GPU.
Tensor qk_norm_rope_store_cpu(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps, double,
                              const Tensor& cos, const Tensor& sin, Tensor k_cache, Tensor v_cache, const Tensor& slot_mapping,
                              int64_t num_q_heads, int64_t num_kv_heads) {
  check_all(qkv, q_weight, k_weight, eps, cos, sin, k_cache, v_cache, slot_mapping, num_q_heads, num_kv_heads);
  refuse_cpu(kOp);
}

}  // namespace qvllm
