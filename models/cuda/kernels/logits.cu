// Summarises logits that stay on the GPU.

#include "elements.cuh"

constexpr int THREADS = 512;
constexpr int NONE = 0x7fffffff;

// Summarises each row of logits, one row per block:
//
// 1. the largest logit;
// 2. the sum of exp(logit - largest) over all ids;
// 3. the largest logit of the ids before `tokens`;
// 4. the number of ids before `tokens`, starting at the first occurrence of that logit.
//
// The sum is NaN if a logit is NaN or infinite, or if all logits are minus infinity.
template <typename T>
__device__ inline void summarize(
    const T *__restrict__ logits,  // [R, V]
    float *__restrict__ out,       // [R, 4]
    int vocab, int tokens) {
  __shared__ float maxima[THREADS], bests[THREADS];
  __shared__ int ids[THREADS];
  __shared__ double totals[THREADS];
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

  // In f64, since a long f32 sum loses small addends next to a large one.
  double total = 0.0;
  for (int at = thread; at < vocab; at += THREADS) total += expf(widen(logits[at]) - max);
  totals[thread] = total;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) totals[thread] += totals[thread + half];
  }
  if (thread > 0) return;
  out += size_t(blockIdx.x) * 4;
  out[0] = max, out[1] = totals[0], out[2] = bests[0];
  out[3] = ids[0] == NONE ? 0.0f : float(tokens - ids[0]);
}

#define OF_TYPE(NAME, T)                                                                 \
  KERNEL(THREADS) summarize_##NAME(const T *logits, float *out, int vocab, int tokens) { \
    summarize(logits, out, vocab, tokens);                                               \
  }

OF_TYPE(f32, float)
OF_TYPE(f16, __half)
OF_TYPE(bf16, __nv_bfloat16)
