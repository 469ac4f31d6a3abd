#include "cache/cache.h"

#include "cache/arguments.h"
#include "cache/kernels.h"

namespace qvllm {
namespace {

constexpr const char* kOp = "store_kv";

void check_store_kv(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache, const Tensor& slot_mapping) {
  check_rows(kOp, "k", k, 8);
  require(k.dim() == 3, kOp, ": k must be [tokens, kv_heads, head_dim], got ", shape_of(k));
  check_same_rows(kOp, "v", v, "k", k);
  check_cache_writes(kOp, k_cache, v_cache, slot_mapping, k.size(0), k.size(1), k.size(2), "k", k);
}

}  // namespace

void store_kv(const Tensor& k, const Tensor& v, Tensor k_cache, Tensor v_cache, const Tensor& slot_mapping) {
  check_store_kv(k, v, k_cache, v_cache, slot_mapping);
  if (k.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(k.get_device_index());
  const Tensor keys = readable(k), values = readable(v);
  StoreKvArguments a{};
  a.k = keys.const_data_ptr();
  a.v = values.const_data_ptr();
  a.cache = cache_writer(k_cache, v_cache);
  a.slots = static_cast<const int64_t*>(slot_mapping.const_data_ptr());
  a.k_token_stride = keys.stride(0) / 8;
  a.k_head_stride = keys.stride(1) / 8;
  a.v_token_stride = values.stride(0) / 8;
  a.v_head_stride = values.stride(1) / 8;
  a.tokens = static_cast<uint32_t>(k.size(0));
  a.kv_heads = static_cast<uint32_t>(k.size(1));
  a.vectors = static_cast<uint32_t>(k.size(2) / 8);
  check_launch(kOp, launch_store_kv(a, current_stream(k)));
}

// The arguments are checked first, so that every message can be met without a GPU.
void store_kv_cpu(const Tensor& k, const Tensor& v, Tensor k_cache, Tensor v_cache, const Tensor& slot_mapping) {
  check_store_kv(k, v, k_cache, v_cache, slot_mapping);
  refuse_cpu(kOp);
}

}  // namespace qvllm
