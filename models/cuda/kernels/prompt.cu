// The operations of prompt attention (many queries over the same keys) around its two matmuls, which cuBLAS
// computes: packing heads before them, converting scores to weights between them, and writing results back to
// their rows after them.

#include "elements.cuh"

constexpr int WARPS_MAX = 8;
constexpr int THREADS_MAX = 32 * WARPS_MAX;

// The row of a query, or an index past all rows if the query pads its group. The query sees its group's keys
// from `first` to `end` (exclusive). `position` is the query's own index among them.
struct Query {
  uint32_t row, first, end, position;
};

// Copies a row of `count` elements. `from` and `to` return the addresses of an element. The blocks of one `x` process one row.
template <typename From, typename To>
__device__ inline void copy_row(int count, bool in_fours, From from, To to) {
  const int thread = blockIdx.y * blockDim.x + threadIdx.x, threads = gridDim.y * blockDim.x;
  if (in_fours) {
    for (int at = thread * 4; at < count; at += threads * 4) {
      const auto four = load_four(from(at));
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; e++) values[e] = widen(four.values[e]);
      store_four(to(at), values);
    }
  } else {
    for (int at = thread; at < count; at += threads) store(to(at), widen(*from(at)));
  }
}

// Packs the heads of `C` groups, with `M` queries and `N` keys each.
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
  const bool in_fours = dim % 4 == 0 && q_width % 4 == 0 && kv_width % 4 == 0;
  if (blockIdx.x < groups * rows) {
    const uint32_t row = reinterpret_cast<const Query *>(queries)[blockIdx.x].row;
    if (row >= rows_count) return;
    const size_t group = blockIdx.x / rows, place = blockIdx.x % rows;
    copy_row(
        heads * dim, in_fours && are_aligned(q, packed_q), [&](int at) { return q + size_t(row) * q_width + at; },
        [&](int at) { return packed_q + ((group * heads + at / dim) * rows + place) * dim + at % dim; });
    return;
  }
  const size_t index = blockIdx.x - groups * rows, group = index / keys, place = index % keys;
  const size_t slot = min(slots[index], slots_count - 1);
  auto copy = [&](const S *from, T *packed) {
    copy_row(
        num_kv_heads * dim, in_fours && are_aligned(from, packed), [&](int at) { return from + slot * kv_width + at; },
        [&](int at) { return packed + ((group * num_kv_heads + at / dim) * keys + place) * dim + at % dim; });
  };
  copy(kv + keys_at, packed_keys);
  copy(kv + values_at, packed_values);
}

// Number of scores per thread that stay in registers.
constexpr int SCORES = 8;

// Computes the softmax of the scores that a query sees, scaled and with biases; 0 for the others. A block
// computes one row.
template <typename T>
__device__ inline void weigh(
    const float *__restrict__ scores,      // [C, H, M, N]
    const uint32_t *__restrict__ queries,  // Query [C * M]
    const float *__restrict__ bias,        // [H, 2 * reach + 1], by distance from query to key; null for none
    T *__restrict__ out,                   // [C, H, M, N]
    float scale, float cap, int heads, int rows, int keys, int reach) {
  __shared__ float highest_of[WARPS_MAX], weight_of[WARPS_MAX];
  const int group = blockIdx.x / rows / heads, head = blockIdx.x / rows % heads, warps = blockDim.x / 32;
  const Query query = reinterpret_cast<const Query *>(queries)[group * rows + blockIdx.x % rows];
  const int first = query.first, end = min(int(query.end), keys), position = query.position;
  scores += size_t(blockIdx.x) * keys, out += size_t(blockIdx.x) * keys;
  if (bias) bias += size_t(head) * (2 * reach + 1) + reach;
  // Scores are in units of log2(e). `LOWEST` stands for a key that the query does not see.
  auto score = [&](int at) {
    if (at < first || at >= end) return LOWEST;
    const float added = bias ? __ldg(bias + min(max(at - position, -reach), reach)) : 0.0f;
    const float scaled = scores[at] * scale;
    return ((cap > 0.0f ? cap * tanhf(scaled / cap) : scaled) + added) * LOG2_E;
  };

  // Each thread has the keys `threadIdx.x + n * blockDim.x`. It reads the scores after the first `SCORES` again.
  const int further = threadIdx.x + SCORES * blockDim.x;
  float held[SCORES], max = LOWEST;
#pragma unroll
  for (int n = 0; n < SCORES; n++) held[n] = score(threadIdx.x + n * blockDim.x), max = fmaxf(max, held[n]);
  for (int at = further; at < end; at += blockDim.x) max = fmaxf(max, score(at));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
  if (threadIdx.x % 32 == 0) highest_of[threadIdx.x / 32] = max;
  __syncthreads();
  for (int warp = 0; warp < warps; warp++) max = fmaxf(max, highest_of[warp]);

  auto weighed = [&](float score) { return score == LOWEST ? 0.0f : exp2f(score - max); };
  float weight = 0.0f;
#pragma unroll
  for (int n = 0; n < SCORES; n++) held[n] = weighed(held[n]), weight += held[n];
  for (int at = further; at < end; at += blockDim.x) weight += weighed(score(at));
  weight = sum_of_warp(weight);
  if (threadIdx.x % 32 == 0) weight_of[threadIdx.x / 32] = weight;
  __syncthreads();
  weight = 0.0f;
  for (int warp = 0; warp < warps; warp++) weight += weight_of[warp];

  const float factor = weight == 0.0f ? 0.0f : __fdividef(1.0f, weight);
#pragma unroll
  for (int n = 0; n < SCORES; n++) {
    const int at = threadIdx.x + n * blockDim.x;
    if (at < keys) store(out + at, held[n] * factor);
  }
  for (int at = further; at < keys; at += blockDim.x) store(out + at, weighed(score(at)) * factor);
}

// Writes the results of queries to their rows.
template <typename T>
__device__ inline void unpack_heads(
    const T *__restrict__ packed,          // [C, H, M, D]
    const uint32_t *__restrict__ queries,  // Query [C * M]
    T *__restrict__ out,                   // [R, H * D]
    uint32_t rows_count, int heads, int dim, int rows) {
  const uint32_t row = reinterpret_cast<const Query *>(queries)[blockIdx.x].row;
  if (row >= rows_count) return;
  const size_t group = blockIdx.x / rows, place = blockIdx.x % rows;
  out += size_t(row) * heads * dim;
  copy_row(
      heads * dim, dim % 4 == 0 && are_aligned(packed, out),
      [&](int at) { return packed + ((group * heads + at / dim) * rows + place) * dim + at % dim; },
      [&](int at) { return out + at; });
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
  PACK(f8e4m3_##NAME, Fp8, T)                                                                                    \
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
