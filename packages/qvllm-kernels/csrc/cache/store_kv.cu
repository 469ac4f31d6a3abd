// Keys and values into the slots of a paged cache. Where a token goes is read together with what goes there.
#include <limits>

#include "cache/kernels.h"
#include "common/launch.cuh"
#include "common/vector.cuh"

namespace qvllm {
namespace {

constexpr uint32_t kThreads = 256;

// A thread copies a vector of a key and the one beside it of the value.
__global__ void __launch_bounds__(kThreads) store_kv_kernel(StoreKvArguments a) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = i / a.vectors, column = i - row * a.vectors;
  const uint32_t token = row / a.kv_heads, head = row - token * a.kv_heads;
  const auto* k = static_cast<const Bf16x8*>(a.k) + token * a.k_token_stride + head * a.k_head_stride + column;
  const auto* v = static_cast<const Bf16x8*>(a.v) + token * a.v_token_stride + head * a.v_head_stride + column;
  wait_for_previous_kernel();
  int64_t slot = -1;
  Bf16x8 key{}, value{};
  if (token < a.tokens) slot = a.slots[token], key = *k, value = *v;
  // No load is moved across this. Behind the branch on the slot, keys and values would wait for memory a second time.
  __syncwarp();
  if (slot < 0) return;
  const uint32_t block = static_cast<uint32_t>(slot) / a.cache.block_size;
  const uint32_t offset = static_cast<uint32_t>(slot) - block * a.cache.block_size;
  static_cast<Bf16x8*>(a.cache.k.start)[a.cache.k.place(block, offset, head, a.vectors) + column] = key;
  static_cast<Bf16x8*>(a.cache.v.start)[a.cache.v.place(block, offset, head, a.vectors) + column] = value;
}

}  // namespace

cudaError_t launch_store_kv(const StoreKvArguments& a, cudaStream_t stream) {
  const uint64_t threads = uint64_t{a.tokens} * a.kv_heads * a.vectors;
  if (threads > std::numeric_limits<uint32_t>::max() - kThreads) return cudaErrorInvalidValue;  // over 64 GB of keys
  return launch(store_kv_kernel, static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, stream, a);
}

}  // namespace qvllm
