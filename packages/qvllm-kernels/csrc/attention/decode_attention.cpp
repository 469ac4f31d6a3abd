#include <algorithm>

#include "attention/arguments.h"
#include "attention/attention.h"

namespace qvllm {
namespace {

constexpr const char* kOp = "decode_attention";

// A launch that is split to fill the GPU has at most so many units.
constexpr int64_t kMostUnits = 1024;
// Items that may be split; more of them fill any GPU.
constexpr int64_t kCounters = 8192;
// Where there are enough items to fill the GPU, only parts longer than so many chunks (8192 keys) are split, or one long
// sequence would outlast a batch of short ones.
constexpr int64_t kLongestRounds = 128;
// Where parts are as short as fills the GPU, a sequence of n chunks has at most 2 sqrt(n) of them: measured on an H200.
constexpr float kRoundsPerRoot = 0.5f;

int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// How a launch is laid out. It depends on the number of sequences and on how long one may be, never on the lengths, so that it
// can be captured in a CUDA graph.
struct Plan {
  int64_t splits;
  int64_t shortest_rounds = 1;
  float rounds_per_root = 0.0f;
};

// `slots` is how many blocks run at a time.
Plan plan_decode(int64_t items, int64_t max_kv_len, int64_t slots) {
  if (items > kCounters) return {1};
  const int64_t chunks = std::max<int64_t>(divided_up(max_kv_len, kChunkKeys), 1);
  const int64_t longest = divided_up(chunks, kLongestRounds);
  const int64_t filling = std::min(slots, kMostUnits) / items;
  const int64_t splits = std::min({std::max(filling, longest), chunks, int64_t{kMostSplits}});
  return filling > 1 ? Plan{splits, 1, kRoundsPerRoot} : Plan{splits, kLongestRounds};
}

// Blocks that a GPU runs at a time: two per multiprocessor, where its shared memory has room for them.
cudaError_t count_slots(int device, int64_t& slots) {
  int multiprocessors = 0, shared_bytes = 0;
  if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device)) return error;
  slots = int64_t{multiprocessors} * (shared_bytes >= 200 << 10 ? 2 : 1);
  return cudaSuccess;
}

void check_decode(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables, const Tensor& kv_lens,
                  const std::optional<Tensor>& workspace, int64_t splits) {
  check_attention(kOp, q, k_cache, v_cache, block_tables, kv_lens, q.dim() > 0 ? q.size(0) : 0);
  require(splits >= 0 && splits <= kMostSplits, kOp, ": splits must be 0 to ", kMostSplits, ", got ", splits);
  if (!workspace) return;
  require(workspace->scalar_type() == ScalarType::Float && workspace->dim() == 1 && workspace->stride(0) == 1 && aligned(*workspace), kOp,
          ": workspace must be a contiguous float32 tensor of one dimension; make it with decode_workspace");
  check_on_device(kOp, "workspace", *workspace, q);
}

// Lays the parts out in the workspace: counters, parts, log-sum-exps.
Tensor place_parts(DecodeArguments& a, const Tensor& q, const std::optional<Tensor>& workspace) {
  const int64_t rows = int64_t{a.units} * a.part_heads, needed = kCounters + rows * (q.size(2) + 1);
  if (workspace) {
    require(workspace->size(0) >= needed, kOp, ": workspace must have ", needed, " elements or more, got ", workspace->size(0),
            "; make it with decode_workspace for calls of this size");
  }
  Tensor memory = workspace ? *workspace : torch::stable::new_zeros(q, {needed}, ScalarType::Float);
  auto* start = static_cast<float*>(memory.mutable_data_ptr());
  a.arrived = reinterpret_cast<int32_t*>(start);
  a.parts = start + kCounters;
  a.lse = a.parts + rows * q.size(2);
  return memory;
}

}  // namespace

Tensor decode_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables, const Tensor& kv_lens,
                        double scale, const std::optional<Tensor>& workspace, int64_t splits) {
  check_decode(q, k_cache, v_cache, block_tables, kv_lens, workspace, splits);
  Tensor out = torch::stable::new_empty(q, q.sizes());
  if (q.numel() == 0) return out;
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  int64_t slots = 0;
  check_launch(kOp, count_slots(q.get_device_index(), slots));
  const Tensor queries = readable_queries(q);
  const int64_t kv_heads = k_cache.size(1), group = q.size(1) / kv_heads, slices = divided_up(group, kHeadsAtOnce);
  const int64_t items = q.size(0) * kv_heads * slices;
  const Plan plan = splits > 0 ? Plan{splits} : plan_decode(items, block_tables.size(1) * k_cache.size(2), slots);
  require(items * plan.splits <= 1 << 30, kOp, ": ", q.size(0), " sequences of ", q.size(1), " heads are too many for one call");
  DecodeArguments a{};
  a.cache = paged_cache(k_cache, v_cache, block_tables);
  a.q = queries.const_data_ptr();
  a.q_seq_stride = queries.stride(0);
  a.q_head_stride = queries.stride(1);
  a.out = out.mutable_data_ptr();
  a.kv_lens = static_cast<const int32_t*>(kv_lens.const_data_ptr());
  a.scale_log2 = static_cast<float>(scale * kLog2E);
  a.group = static_cast<int32_t>(group);
  a.kv_heads = Divisor(static_cast<uint32_t>(kv_heads));
  a.slices = Divisor(static_cast<uint32_t>(slices));
  a.items = Divisor(static_cast<uint32_t>(items));
  a.units = static_cast<int32_t>(items * plan.splits);
  a.splits = static_cast<int32_t>(plan.splits);
  a.shortest_rounds = static_cast<int32_t>(plan.shortest_rounds);
  a.rounds_per_root = plan.rounds_per_root;
  a.part_heads = static_cast<int32_t>(std::min<int64_t>(group, kHeadsAtOnce));
  const Tensor memory = plan.splits > 1 ? place_parts(a, q, workspace) : out;
  const auto blocks = static_cast<int>(std::min<int64_t>(a.units, slots));
  check_launch(kOp, launch_decode_attention(static_cast<int>(q.size(2)), blocks, a, current_stream(q)));
  return out;
}

// The arguments are checked first, so that every message can be met without a GPU.
Tensor decode_attention_cpu(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables,
                            const Tensor& kv_lens, double, const std::optional<Tensor>& workspace, int64_t splits) {
  check_decode(q, k_cache, v_cache, block_tables, kv_lens, workspace, splits);
  refuse_cpu(kOp);
}

int64_t decode_workspace_size(int64_t max_seqs, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim, int64_t max_kv_len) {
  require(max_seqs >= 0 && num_kv_heads > 0 && num_q_heads > 0 && num_q_heads % num_kv_heads == 0 && head_dim > 0 && max_kv_len >= 0,
          "decode_workspace: sizes must be positive and num_q_heads a multiple of num_kv_heads, got ", max_seqs, " sequences, ",
          num_q_heads, " and ", num_kv_heads, " heads, head_dim ", head_dim, ", max_kv_len ", max_kv_len);
  const int64_t group = num_q_heads / num_kv_heads, slices = divided_up(group, kHeadsAtOnce);
  const int64_t items = std::min(max_seqs * num_kv_heads * slices, kCounters);
  const int64_t longest = std::min<int64_t>(divided_up(divided_up(max_kv_len, kChunkKeys), kLongestRounds), kMostSplits);
  const int64_t rows = std::max(kMostUnits, items * longest) * std::min<int64_t>(group, kHeadsAtOnce);
  return kCounters + rows * (head_dim + 1);
}

}  // namespace qvllm
