// The operations of prompt attention (many queries over the same keys) around its two matmuls, which cuBLAS
// computes: packing heads before them, converting scores to weights between them, and writing results back to
// their rows after them.

#include "elements.cuh"

// Less than every score, and finite, so that the difference of two such values is a number.
constexpr float LOWEST = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int WARPS_MAX = 8;
constexpr int THREADS_MAX = 32 * WARPS_MAX;

// The row of a query, or an index past all rows if the query pads its group. The query sees its group's keys
// from `first` to `end` (exclusive). `position` is the query's own index among them.
struct Query {
  uint32_t row, first, end, position;
};

// Returns the head that this warp processes.
__device__ inline int head_of_warp() { return blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32; }

// Packs the heads of `C` groups, with `M` queries and `N` keys each. A warp copies one head of a row.
template <typename S, typename T>
__device__ inline void pack_heads(
    const float *__restrict__ q,           // [R, q_width]: queries from the first column on
    const S *__restrict__ kv,              // [.., kv_width]; keys and values begin at their elements
    const uint32_t *__restrict__ queries,  // Query [C * M]
    const uint32_t *__restrict__ slots,    // [C * N], or null if keys are not packed
    T *__restrict__ packed_q,              // [C, H, M, D]
    T *__restrict__ packed_keys,           // [C, G, N, D]
    T *__restrict__ packed_values,         // [C, G, N, D]
    size_t keys_at, size_t values_at, uint32_t rows_count, uint32_t slots_count, int q_width, int kv_width, int heads,
    int num_kv_heads, int dim, int groups, int rows, int keys) {
  const int lane = threadIdx.x % 32, head = head_of_warp();
  if (blockIdx.x < groups * rows) {
    const uint32_t row = reinterpret_cast<const Query *>(queries)[blockIdx.x].row;
    if (head >= heads || row >= rows_count) return;
    const float *from = q + size_t(row) * q_width + size_t(head) * dim;
    const size_t group = blockIdx.x / rows, place = blockIdx.x % rows;
    T *to = packed_q + ((group * heads + head) * rows + place) * dim;
    for (int at = lane; at < dim; at += 32) store(to + at, from[at]);
    return;
  }
  const size_t index = blockIdx.x - groups * rows;
  if (head >= 2 * num_kv_heads) return;
  const bool is_key = head < num_kv_heads;
  const size_t key_head = is_key ? head : head - num_kv_heads, group = index / keys, place = index % keys;
  const size_t slot = min(slots[index], slots_count - 1);
  const S *from = kv + (is_key ? keys_at : values_at) + slot * kv_width + key_head * dim;
  T *to = (is_key ? packed_keys : packed_values) + ((group * num_kv_heads + key_head) * keys + place) * dim;
  for (int at = lane; at < dim; at += 32) store(to + at, widen(from[at]));
}

// Computes the softmax of the scores that a query sees, scaled and with biases; 0 for the others. A block
// computes one row in two passes.
template <typename T>
__device__ inline void weigh(
    const float *__restrict__ scores,      // [C, H, M, N]
    const uint32_t *__restrict__ queries,  // Query [C * M]
    const float *__restrict__ bias,        // [2 * reach + 1, H], by distance from query to key; null for none
    T *__restrict__ out,                   // [C, H, M, N]
    float scale, float cap, int heads, int rows, int keys, int reach) {
  __shared__ float highest_of[WARPS_MAX], weight_of[WARPS_MAX];
  const size_t group = blockIdx.x / rows / heads;
  const int head = blockIdx.x / rows % heads;
  const Query query = reinterpret_cast<const Query *>(queries)[group * rows + blockIdx.x % rows];
  const int first = query.first, end = min(int(query.end), keys), position = query.position;
  scores += size_t(blockIdx.x) * keys, out += size_t(blockIdx.x) * keys;
  auto score = [&](int at) {
    const float added = bias ? __ldg(bias + size_t(min(max(at - position, -reach), reach) + reach) * heads + head) : 0.0f;
    const float scaled = scores[at] * scale;
    return ((cap > 0.0f ? cap * tanhf(scaled / cap) : scaled) + added) * LOG2_E;
  };

  float max = LOWEST, weight = 0.0f;
  auto add = [&](float other_max, float other_weight) {
    const float highest = fmaxf(max, other_max);
    weight = weight * exp2f(max - highest) + other_weight * exp2f(other_max - highest);
    max = highest;
  };
  for (int at = first + threadIdx.x; at < end; at += blockDim.x) add(score(at), 1.0f);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other_max = __shfl_xor_sync(0xffffffffu, max, offset);
    add(other_max, __shfl_xor_sync(0xffffffffu, weight, offset));
  }
  if (threadIdx.x % 32 == 0) highest_of[threadIdx.x / 32] = max, weight_of[threadIdx.x / 32] = weight;
  __syncthreads();
  max = LOWEST, weight = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; warp++) add(highest_of[warp], weight_of[warp]);

  for (int at = threadIdx.x; at < keys; at += blockDim.x)
    store(out + at, at >= first && at < end ? exp2f(score(at) - max) / weight : 0.0f);
}

// Writes the results of queries to their rows. A warp copies one head of a row.
template <typename T>
__device__ inline void unpack_heads(
    const T *__restrict__ packed,          // [C, H, M, D]
    const uint32_t *__restrict__ queries,  // Query [C * M]
    T *__restrict__ out,                   // [R, H * D]
    uint32_t rows_count, int heads, int dim, int rows) {
  const int lane = threadIdx.x % 32, head = head_of_warp();
  const uint32_t row = reinterpret_cast<const Query *>(queries)[blockIdx.x].row;
  if (head >= heads || row >= rows_count) return;
  const size_t group = blockIdx.x / rows, place = blockIdx.x % rows;
  const T *from = packed + ((group * heads + head) * rows + place) * dim;
  T *to = out + (size_t(row) * heads + head) * dim;
  for (int at = lane; at < dim; at += 32) to[at] = from[at];
}

#define PACK(NAME, S, T)                                                                                          \
  KERNEL(THREADS_MAX) pack_heads_##NAME(                                                                          \
      const float *q, const S *kv, const uint32_t *queries, const uint32_t *slots, T *packed_q, T *packed_keys,   \
      T *packed_values, size_t keys_at, size_t values_at, uint32_t rows_count, uint32_t slots_count, int q_width, \
      int kv_width, int heads, int num_kv_heads, int dim, int groups, int rows, int keys) {                       \
    pack_heads(q, kv, queries, slots, packed_q, packed_keys, packed_values, keys_at, values_at, rows_count,       \
               slots_count, q_width, kv_width, heads, num_kv_heads, dim, groups, rows, keys);                     \
  }
#define OF_TYPE(NAME, T)                                                                                         \
  PACK(f32_##NAME, float, T)                                                                                     \
  KERNEL(THREADS_MAX) weigh_##NAME(const float *scores, const uint32_t *queries, const float *bias, T *out,      \
                                   float scale, float cap, int heads, int rows, int keys, int reach) {           \
    weigh(scores, queries, bias, out, scale, cap, heads, rows, keys, reach);                                     \
  }                                                                                                              \
  KERNEL(THREADS_MAX) unpack_heads_##NAME(const T *packed, const uint32_t *queries, T *out, uint32_t rows_count, \
                                          int heads, int dim, int rows) {                                        \
    unpack_heads(packed, queries, out, rows_count, heads, dim, rows);                                            \
  }

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, __nv_bfloat16)
PACK(f16_f16, __half, __half)
PACK(bf16_bf16, __nv_bfloat16, __nv_bfloat16)
