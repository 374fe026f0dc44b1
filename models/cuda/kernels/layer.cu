// The operations of a layer between its matmuls: normalisation, projections to the cache, activations.

#include "elements.cuh"

// Returns the sum of a value over all threads of a block, in every thread.
__device__ inline float sum_of_block(float value) {
  __shared__ float sums[32];
  value = sum_of_warp(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = sum_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f);
  __syncthreads();
  return value;
}

// Normalises one row per block, by its root mean square or, with a bias, by mean and variance.
template <typename T>
__device__ inline void norm(
    const float *__restrict__ x,       // [M, K]
    const float *__restrict__ weight,  // [K]
    const float *__restrict__ bias,    // [K], or null
    T *__restrict__ out,               // [M, K]
    int width, float eps) {
  const bool in_fours = width % 4 == 0 && are_aligned(x, weight, bias, out);
  x += size_t(blockIdx.x) * width, out += size_t(blockIdx.x) * width;
  auto sum = [&](auto term) {
    float sum = 0.0f;
    if (in_fours) {
      for (int at = threadIdx.x * 4; at < width; at += blockDim.x * 4) {
        const auto four = load_four(x + at);
#pragma unroll
        for (int e = 0; e < 4; e++) sum += term(four.values[e]);
      }
    } else {
      for (int at = threadIdx.x; at < width; at += blockDim.x) sum += term(x[at]);
    }
    return sum_of_block(sum);
  };
  const float mean = bias ? sum([](float x) { return x; }) / width : 0.0f;
  const float square = sum([&](float x) { return (x - mean) * (x - mean); }) / width;
  const float scale = rsqrtf(square + eps);
  auto normed = [&](float x, float weight, float bias) { return (x - mean) * scale * weight + bias; };
  if (in_fours) {
    for (int at = threadIdx.x * 4; at < width; at += blockDim.x * 4) {
      const auto four = load_four(x + at), weights = load_four(weight + at);
      const auto biases = bias ? load_four(bias + at) : Adjacent<float, 4>{};
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; e++) values[e] = normed(four.values[e], weights.values[e], biases.values[e]);
      store_four(out + at, values);
    }
  } else {
    for (int at = threadIdx.x; at < width; at += blockDim.x)
      store(out + at, normed(x[at], weight[at], bias ? bias[at] : 0.0f));
  }
}

// Writes the keys and values of rows to their slots. A warp processes one head of a row. Queries and keys are
// normalised if weights are given, each head by itself or all heads of a row together, and rotated if angles
// are given. Queries are written to a separate tensor.
template <typename T>
__device__ inline void store_kv(
    const float *__restrict__ qkv,       // [R, (H + 2 * G) * D]: queries, keys, values
    const uint32_t *__restrict__ slots,  // [R]
    const float *__restrict__ rope,      // [R, 2, P]: cosines and sines of the first P pairs of heads, or null
    const float *__restrict__ q_norm,    // [D], or [H * D] if rows are normalised, or null
    const float *__restrict__ k_norm,    // [D], or [G * D] if rows are normalised, or null
    float *__restrict__ q,               // [R, H * D]
    T *__restrict__ slab,                // [2 * capacity, G * D]: keys of all slots, then their values
    float eps, int heads, int num_kv_heads, int dim, int pairs, bool norms_rows, uint32_t capacity) {
  const int lane = threadIdx.x % 32, head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  const int all = heads + 2 * num_kv_heads;
  if (head >= all) return;
  const float *x = qkv + (size_t(blockIdx.x) * all + head) * dim;
  const bool is_query = head < heads, is_key = !is_query && head < heads + num_kv_heads;
  const float *weight = is_query ? q_norm : is_key ? k_norm : nullptr;
  const float *angles = rope && (is_query || is_key) ? rope + size_t(blockIdx.x) * 2 * pairs : nullptr;

  float scale = 1.0f;
  if (weight) {
    const int before = norms_rows ? (is_query ? head : head - heads) * dim : 0;
    const int count = norms_rows ? (is_query ? heads : num_kv_heads) * dim : dim;
    const float *from = x - before;
    float square = 0.0f;
    for (int at = lane; at < count; at += 32) square += from[at] * from[at];
    scale = rsqrtf(sum_of_warp(square) / count + eps);
    weight += before;
  }
  const uint32_t slot = slots[blockIdx.x];
  if (!is_query && slot >= capacity) return;
  const int lane_of_keys = head - heads - (is_key ? 0 : num_kv_heads);
  T *kv = slab + ((is_key ? 0 : size_t(capacity)) + slot) * num_kv_heads * dim + size_t(lane_of_keys) * dim;
  for (int at = lane; at < dim; at += 32) {
    float value = weight ? x[at] * scale * weight[at] : x[at];
    if (angles && at < 2 * pairs) {
      const bool is_left = at < pairs;
      const int pair = is_left ? at : at - pairs, other_at = is_left ? at + pairs : at - pairs;
      const float other = weight ? x[other_at] * scale * weight[other_at] : x[other_at];
      value = value * angles[pair] + (is_left ? -other : other) * angles[pairs + pair];
    }
    if (is_query)
      q[(size_t(blockIdx.x) * heads + head) * dim + at] = value;
    else
      store(kv + at, value);
  }
}

// Activations by number, the same as in `Activation` on the host.
enum { RELU, GELU, GELU_TANH, SILU };

__device__ inline float activated(float x, int activation) {
  switch (activation) {
    case GELU: return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case SILU: return x / (1.0f + expf(-x));
    default: return fmaxf(x, 0.0f);
  }
}

// Computes the activation of x, or the activation of its left half times the right half. The blocks of one `x`
// process one row.
template <typename T>
__device__ inline void activate(
    const float *__restrict__ x,  // [M, W], or [M, 2 * W] if gated
    T *__restrict__ out,          // [M, W]
    int width, int activation, bool is_gated) {
  const bool in_fours = width % 4 == 0 && are_aligned(x, out);
  x += size_t(blockIdx.x) * width * (is_gated ? 2 : 1), out += size_t(blockIdx.x) * width;
  const int thread = blockIdx.y * blockDim.x + threadIdx.x, threads = gridDim.y * blockDim.x;
  if (in_fours) {
    for (int at = thread * 4; at < width; at += threads * 4) {
      const auto four = load_four(x + at);
      const auto factors = is_gated ? load_four(x + width + at) : Adjacent<float, 4>{1.0f, 1.0f, 1.0f, 1.0f};
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; e++) values[e] = activated(four.values[e], activation) * factors.values[e];
      store_four(out + at, values);
    }
  } else {
    for (int at = thread; at < width; at += threads)
      store(out + at, activated(x[at], activation) * (is_gated ? x[width + at] : 1.0f));
  }
}

// Adds each row of y to the same row of x, in place. If y has one row, it is added to all. The blocks of one `x` process one row.
__device__ inline void add(
    float *__restrict__ x,        // [M, W]
    const float *__restrict__ y,  // [M, W], or [W]
    int width, bool is_one_row) {
  const bool in_fours = width % 4 == 0 && are_aligned(x, y);
  x += size_t(blockIdx.x) * width, y += is_one_row ? 0 : size_t(blockIdx.x) * width;
  const int thread = blockIdx.y * blockDim.x + threadIdx.x, threads = gridDim.y * blockDim.x;
  if (in_fours) {
    for (int at = thread * 4; at < width; at += threads * 4) {
      const auto left = load_four(x + at), right = load_four(y + at);
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; e++) values[e] = left.values[e] + right.values[e];
      store_four(x + at, values);
    }
  } else {
    for (int at = thread; at < width; at += threads) x[at] += y[at];
  }
}

KERNEL(256) add_f32(float *x, const float *y, int width, int is_one_row) { add(x, y, width, is_one_row != 0); }

#define STORE_KV(NAME, T)                                                                                        \
  KERNEL(256) store_kv_##NAME(const float *qkv, const uint32_t *slots, const float *rope, const float *q_norm,   \
                              const float *k_norm, float *q, T *slab, float eps, int heads, int num_kv_heads,    \
                              int dim, int pairs, int norms_rows, uint32_t capacity) {                           \
    store_kv(qkv, slots, rope, q_norm, k_norm, q, slab, eps, heads, num_kv_heads, dim, pairs, norms_rows != 0,   \
             capacity);                                                                                          \
  }
#define OF_TYPE(NAME, T)                                                                                           \
  KERNEL(1024) norm_##NAME(const float *x, const float *weight, const float *bias, T *out, int width, float eps) { \
    norm(x, weight, bias, out, width, eps);                                                                        \
  }                                                                                                                \
  STORE_KV(NAME, T)                                                                                                \
  KERNEL(256) activate_##NAME(const float *x, T *out, int width, int activation, int is_gated) {                   \
    activate(x, out, width, activation, is_gated != 0);                                                            \
  }

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, __nv_bfloat16)
STORE_KV(f8e4m3, Fp8)
