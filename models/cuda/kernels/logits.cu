// What a step needs of logits that stay on the GPU.

#include "elements.cuh"

constexpr int THREADS = 512;
constexpr int NONE = 0x7fffffff;

// Of a row of logits: the largest, the sums of exp(logit - largest) of all ids and of those from `tokens` on, the largest of the ids before
// `tokens`, and how many of these there are from its first place on. The sums are NaN where a logit is NaN or infinite, or all are
// minus infinity. A block takes a row.
template <typename T>
__device__ inline void summarize(
    const T *__restrict__ logits,  // [R, V]
    float *__restrict__ out,       // [R, 5]
    int vocab, int tokens) {
  __shared__ float maxima[THREADS], bests[THREADS];
  __shared__ int ids[THREADS];
  __shared__ double totals[THREADS], paddings[THREADS];
  const int thread = threadIdx.x;
  logits += size_t(blockIdx.x) * vocab;

  float max = widen(logits[0]), best = 0.0f;
  int id = NONE;
  for (int at = thread; at < vocab; at += THREADS) {
    const float logit = widen(logits[at]);
    max = fmaxf(max, logit);
    if (at < tokens && (id == NONE || logit > best)) best = logit, id = at;
  }
  maxima[thread] = max, bests[thread] = best, ids[thread] = id;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    const int other = thread + half;
    maxima[thread] = fmaxf(maxima[thread], maxima[other]);
    const bool is_better = bests[other] > bests[thread] || (bests[other] == bests[thread] && ids[other] < ids[thread]);
    if (ids[other] != NONE && (ids[thread] == NONE || is_better))
      bests[thread] = bests[other], ids[thread] = ids[other];
  }
  __syncthreads();
  max = maxima[0];

  // In f64, since in a long sum of f32 small addends are lost behind a large one.
  double total = 0.0, padding = 0.0;
  for (int at = thread; at < vocab; at += THREADS) {
    const double weight = expf(widen(logits[at]) - max);
    total += weight;
    if (at >= tokens) padding += weight;
  }
  totals[thread] = total, paddings[thread] = padding;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    totals[thread] += totals[thread + half], paddings[thread] += paddings[thread + half];
  }
  if (thread > 0) return;
  out += size_t(blockIdx.x) * 5;
  out[0] = max, out[1] = totals[0], out[2] = paddings[0], out[3] = bests[0];
  out[4] = ids[0] == NONE ? 0.0f : float(tokens - ids[0]);
}

#define OF_TYPE(NAME, T)                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS) summarize_##NAME(const T *logits, float *out, int vocab,      \
                                                                         int tokens) {                                \
    summarize(logits, out, vocab, tokens);                                                                            \
  }

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, __nv_bfloat16)
