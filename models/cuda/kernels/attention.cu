// Softmax attention of single rows over keys and values anywhere in the cache.
//
// A block computes one row for `HEADS` query heads that share a key head, over one part of the row's keys.
// Groups of threads process keys in alternation. Each thread has `HELD` elements of the head and loads those
// elements of a key and of its value with one 16-byte load each (two for f32, 8 bytes for fp8). The group adds up the score
// with shuffles. Every group has its own softmax, which is corrected when a larger score appears. At the end,
// the sums of all groups in the block are added up. If a row's keys are split among blocks, a second kernel
// adds up their sums.

#include "elements.cuh"

constexpr int WARP = 32;
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / WARP;
// Maximum number of elements of a head.
constexpr int DIM_MAX = WARP * HELD;

// The keys that a row sees, as positions in a list of slots: `shared_count` slots starting at `shared`,
// followed by the slots starting at `own`. The row sees only the range of these from `first` to `end`
// (exclusive). `position` is the row's own index among them.
struct Row {
  uint32_t shared, shared_count, own, first, end, position;
};

// Sums over a part of a row's keys: the weights, and the weighted values by element, both divided by 2 to the
// power of `max`.
template <int HEADS>
struct Sums {
  float max[HEADS], weight[HEADS], values[HEADS][HELD];
};

// `S`: type of the cache's elements. `ALIGNED`: whether the head size is a multiple of `HELD` elements.
template <typename S, typename T, int HEADS, bool ALIGNED>
__device__ inline void attend(
    const float *__restrict__ q,         // [R, H * D]
    const S *__restrict__ slab,          // [2 * capacity, G * D]: keys of all slots, then their values
    const uint32_t *__restrict__ table,  // Row [R], then the list of slots
    const float *__restrict__ bias,      // [H, 2 * reach + 1], by distance from query to key; null for none
    T *__restrict__ out,                 // [R, H * D]
    float *__restrict__ parts,           // [R, H, parts, D + 2]: values, maximum, weight; used if there is more than one part
    float scale,
    float cap,  // scaled scores s become cap * tanh(s / cap); 0 for none
    int heads, int num_kv_heads, int dim, uint32_t capacity, uint32_t slots_count, int reach, int lanes) {
  extern __shared__ float state[];  // [WARPS, HEADS, D + 2]

  const Row row = reinterpret_cast<const Row *>(table)[blockIdx.x];
  const uint32_t *slots = table + gridDim.x * (sizeof(Row) / sizeof(uint32_t));
  const int sharing = heads / num_kv_heads, chunks = (sharing + HEADS - 1) / HEADS;
  const int key_head = blockIdx.y / chunks, chunk = blockIdx.y % chunks;
  const int head = key_head * sharing + chunk * HEADS, live = min(HEADS, sharing - chunk * HEADS);

  const int group = threadIdx.x / lanes, groups = THREADS / lanes, element = threadIdx.x % lanes * HELD;
  // The number of lanes is a power of two. Lanes beyond the head have no elements: they multiply its first
  // elements by 0.
  const int held = max(dim - element, 0), read = held > 0 ? element : 0;
  const size_t width = size_t(num_kv_heads) * dim, offset = size_t(key_head) * dim + read;
  const size_t values = size_t(capacity) * width;

  float query[HEADS][HELD];
  Sums<HEADS> sums;
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    const float *from = q + (size_t(blockIdx.x) * heads + head + h) * dim + element;
    sums.max[h] = LOWEST, sums.weight[h] = 0.0f;
#pragma unroll
    for (int e = 0; e < HELD; e++)
      query[h][e] = h < live && e < held ? from[e] * (scale * LOG2_E) : 0.0f, sums.values[h][e] = 0.0f;
  }

  // Number of keys that a group processes together: all of them are loaded before the first is used.
  constexpr int AT_ONCE = HEADS < 8 ? 4 : 2;
  const uint32_t part = (row.end - row.first + gridDim.z - 1) / gridDim.z;
  const uint32_t from = row.first + blockIdx.z * part, to = min(from + part, row.end);
  for (uint32_t start = from; start < to; start += groups * AT_ONCE) {
    Elements<S> keys[AT_ONCE], kept[AT_ONCE];
    size_t places[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      // Past the last key, the last key is read again, with weight 0.
      const uint32_t index = min(start + k * groups + group, to - 1);
      const uint32_t at = index < row.shared_count ? row.shared + index : row.own + index - row.shared_count;
      // An index beyond a list or the cache is clamped to it.
      places[k] = size_t(min(slots[min(at, slots_count - 1)], capacity - 1)) * width + offset;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) keys[k] = load<S, ALIGNED>(slab + places[k], held);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) kept[k] = load<S, ALIGNED>(slab + values + places[k], held);
    float scores[AT_ONCE][HEADS];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
      for (int h = 0; h < HEADS; h++) scores[k][h] = 0.0f;
#pragma unroll
      for (int e = 0; e < HELD; e++) {
        const float key = widen(keys[k].values[e]);
#pragma unroll
        for (int h = 0; h < HEADS; h++) scores[k][h] += query[h][e] * key;
      }
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2)
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
        for (int h = 0; h < HEADS; h++)
          scores[k][h] += __shfl_xor_sync(0xffffffffu, scores[k][h], distance);

    float highest[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) highest[h] = sums.max[h];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const uint32_t index = start + k * groups + group;
      const int code = min(max(int(index) - int(row.position), -reach), reach) + reach;
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        // Scores are in units of log2(e).
        if (cap > 0.0f) scores[k][h] = cap * LOG2_E * tanhf(scores[k][h] / (cap * LOG2_E));
        if (bias && h < live) scores[k][h] += LOG2_E * __ldg(bias + (head + h) * (2 * reach + 1) + code);
        if (index >= to) scores[k][h] = LOWEST;
        highest[h] = fmaxf(highest[h], scores[k][h]);
      }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      const float shrink = exp2f(sums.max[h] - highest[h]);
      sums.max[h] = highest[h], sums.weight[h] *= shrink;
#pragma unroll
      for (int e = 0; e < HELD; e++) sums.values[h][e] *= shrink;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const bool is_seen = start + k * groups + group < to;
      float weights[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        weights[h] = is_seen ? exp2f(scores[k][h] - highest[h]) : 0.0f;
        sums.weight[h] += weights[h];
      }
#pragma unroll
      for (int e = 0; e < HELD; e++) {
        const float value = widen(kept[k].values[e]);
#pragma unroll
        for (int h = 0; h < HEADS; h++) sums.values[h][e] += weights[h] * value;
      }
    }
  }

  // First the groups of a warp, then the warps.
  for (int distance = lanes; distance < WARP; distance *= 2)
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      const float other = __shfl_xor_sync(0xffffffffu, sums.max[h], distance), max = fmaxf(sums.max[h], other);
      const float own = exp2f(sums.max[h] - max), others = exp2f(other - max);
      sums.max[h] = max;
      sums.weight[h] = sums.weight[h] * own + __shfl_xor_sync(0xffffffffu, sums.weight[h], distance) * others;
#pragma unroll
      for (int e = 0; e < HELD; e++)
        sums.values[h][e] =
            sums.values[h][e] * own + __shfl_xor_sync(0xffffffffu, sums.values[h][e], distance) * others;
    }
  const int stride = dim + 2;
  if (threadIdx.x % WARP < lanes) {
    float *own = state + threadIdx.x / WARP * HEADS * stride;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
      for (int e = 0; e < HELD; e++)
        if (e < held) own[h * stride + element + e] = sums.values[h][e];
      if (element == 0) own[h * stride + dim] = sums.max[h], own[h * stride + dim + 1] = sums.weight[h];
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < live * dim; at += THREADS) {
    const int h = at / dim, e = at % dim;
    float max = LOWEST, weight = 0.0f, sum = 0.0f;
    for (int warp = 0; warp < WARPS; warp++) max = fmaxf(max, state[(warp * HEADS + h) * stride + dim]);
    for (int warp = 0; warp < WARPS; warp++) {
      const float *one = state + (warp * HEADS + h) * stride;
      const float factor = exp2f(one[dim] - max);
      weight += one[dim + 1] * factor, sum += one[e] * factor;
    }
    const size_t lane = size_t(blockIdx.x) * heads + head + h;
    if (gridDim.z == 1) {
      store(out + lane * dim + e, weight > 0.0f ? sum / weight : sum);
    } else {
      float *part_of = parts + (lane * gridDim.z + blockIdx.z) * stride;
      part_of[e] = sum;
      if (e == 0) part_of[dim] = max, part_of[dim + 1] = weight;
    }
  }
}

// Adds up the parts of a row: one block per row and head, one thread per element.
template <typename T>
__device__ inline void add_parts(const float *__restrict__ parts, T *__restrict__ out, int count, int dim) {
  const size_t lane = size_t(blockIdx.x) * gridDim.y + blockIdx.y;
  const int stride = dim + 2;
  const float *own = parts + lane * count * stride;
  float max = LOWEST, weight = 0.0f, sum = 0.0f;
  for (int part = 0; part < count; part++) max = fmaxf(max, own[part * stride + dim]);
  for (int part = 0; part < count; part++) {
    const float factor = exp2f(own[part * stride + dim] - max);
    weight += own[part * stride + dim + 1] * factor, sum += own[part * stride + threadIdx.x] * factor;
  }
  store(out + lane * dim + threadIdx.x, weight > 0.0f ? sum / weight : sum);
}

#define ATTEND(NAME, S, T, HEADS, ALIGNED)                                                                       \
  KERNEL(THREADS) attend_##NAME(const float *q, const S *slab, const uint32_t *table, const float *bias, T *out, \
                                float *parts, float scale, float cap, int heads, int num_kv_heads, int dim,      \
                                uint32_t capacity, uint32_t slots_count, int reach, int lanes) {                 \
    attend<S, T, HEADS, ALIGNED>(q, slab, table, bias, out, parts, scale, cap, heads, num_kv_heads, dim,         \
                                 capacity, slots_count, reach, lanes);                                           \
  }
#define ADD_PARTS(NAME, T)                                                           \
  KERNEL(DIM_MAX) add_parts_##NAME(const float *parts, T *out, int count, int dim) { \
    add_parts(parts, out, count, dim);                                               \
  }
#define ATTEND_ALL(NAME, S, T)     \
  ATTEND(NAME##_1, S, T, 1, true)  \
  ATTEND(NAME##_2, S, T, 2, true)  \
  ATTEND(NAME##_4, S, T, 4, true)  \
  ATTEND(NAME##_8, S, T, 8, true)  \
  ATTEND(NAME##_any, S, T, 1, false)
#define OF_TYPE(NAME, T)              \
  ATTEND_ALL(NAME, T, T)              \
  ATTEND_ALL(f8e4m3_##NAME, Fp8, T)   \
  ADD_PARTS(NAME, T)

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, __nv_bfloat16)
