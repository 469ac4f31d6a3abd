#include "rotary/rotary.h"

#include "rotary/arguments.h"

namespace qvllm {
namespace {

constexpr const char* kOp = "rotary_embedding";

void check_rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin) {
  require(q.scalar_type() == ScalarType::BFloat16, kOp, ": q must be bfloat16, got ", q.scalar_type());
  require(k.scalar_type() == ScalarType::BFloat16, kOp, ": k must be bfloat16, got ", k.scalar_type());
  require(q.dim() == 3 && k.dim() == 3 && q.size(0) == k.size(0) && q.size(2) == k.size(2) && q.size(1) > 0 && k.size(1) > 0, kOp,
          ": q must be [tokens, q_heads, head_dim] and k [tokens, kv_heads, head_dim], got ", shape_of(q), " and ", shape_of(k));
  check_head_dim(kOp, q.size(2));
  check_last_contiguous(kOp, "q", q);
  check_last_contiguous(kOp, "k", k);
  check_same_device(kOp, "k", k, "q", q);
  check_tables(kOp, cos, sin, q.size(0), q.size(2), "q", q);
}

}  // namespace

std::tuple<Tensor, Tensor> rotary_embedding(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin) {
  check_rotary(q, k, cos, sin);
  Tensor q_out = torch::stable::new_empty(q, q.sizes()), k_out = torch::stable::new_empty(k, k.sizes());
  if (q.size(0) == 0) return {q_out, k_out};
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  const Tensor qs = readable(q), ks = readable(k);
  const Tensor cosines = readable(cos, kFloatsIn16Bytes), sines = readable(sin, kFloatsIn16Bytes);
  RotaryArguments a{};
  a.q = qs.const_data_ptr();
  a.k = ks.const_data_ptr();
  a.q_out = q_out.mutable_data_ptr();
  a.k_out = k_out.mutable_data_ptr();
  a.tables = rotary_tables(cosines, sines);
  a.size = head_size(q.size(2), cos);
  a.q_token_stride = qs.stride(0) / 8;
  a.q_head_stride = qs.stride(1) / 8;
  a.k_token_stride = ks.stride(0) / 8;
  a.k_head_stride = ks.stride(1) / 8;
  a.tokens = static_cast<uint32_t>(q.size(0));
  a.q_heads = static_cast<uint32_t>(q.size(1));
  a.kv_heads = static_cast<uint32_t>(k.size(1));
  check_launch(kOp, launch_rotary_embedding(a, current_stream(q)));
  return {q_out, k_out};
}

// The arguments are checked first, so that every message can be met without a GPU.
std::tuple<Tensor, Tensor> rotary_embedding_cpu(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin) {
  check_rotary(q, k, cos, sin);
  refuse_cpu(kOp);
}

}  // namespace qvllm
