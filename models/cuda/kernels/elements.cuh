// Elements of models in memory (f32, f16, bf16). All kernels compute with them in f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// A kernel that is launched with at most this many threads per block, for which the compiler leaves enough registers.
#define KERNEL(THREADS_MAX) extern "C" __global__ void __launch_bounds__(THREADS_MAX)

// Number of elements of a head per thread.
constexpr int HELD = 8;

__device__ inline void store(float *at, float value) { *at = value; }
__device__ inline void store(__half *at, float value) { *at = __float2half_rn(value); }
__device__ inline void store(__nv_bfloat16 *at, float value) { *at = __float2bfloat16_rn(value); }

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// Elements in their memory format.
template <typename T>
struct __align__(16) Elements {
  T values[HELD];
};

// The elements at an address, which is a multiple of 16 bytes if `ALIGNED`. Otherwise, the first `count`
// elements, and zeros for the rest.
template <typename T, bool ALIGNED>
__device__ inline Elements<T> load(const T *from, int count) {
  Elements<T> loaded;
  if constexpr (ALIGNED) {
    uint4 *to = reinterpret_cast<uint4 *>(&loaded);
#pragma unroll
    for (int at = 0; at < int(sizeof(loaded) / sizeof(uint4)); at++)
      to[at] = __ldg(reinterpret_cast<const uint4 *>(from) + at);
  } else {
#pragma unroll
    for (int at = 0; at < HELD; at++) loaded.values[at] = at < count ? from[at] : T(0.0f);
  }
  return loaded;
}

// `N` adjacent elements in their memory format. Their address must be a multiple of their size together.
template <typename T, int N>
struct __align__(sizeof(T) * N) Adjacent {
  T values[N];
};

// Returns four elements, loaded together.
template <typename T>
__device__ inline Adjacent<T, 4> load_four(const T *from) {
  return *reinterpret_cast<const Adjacent<T, 4> *>(from);
}

template <typename T>
__device__ inline void store_four(T *to, const float (&values)[4]) {
  Adjacent<T, 4> four;
#pragma unroll
  for (int at = 0; at < 4; at++) store(&four.values[at], values[at]);
  *reinterpret_cast<Adjacent<T, 4> *>(to) = four;
}

// Returns whether four elements can be loaded or stored together at these addresses.
template <typename... T>
__device__ inline bool are_aligned(const T *...addresses) {
  return ((reinterpret_cast<uintptr_t>(addresses) % (4 * sizeof(T)) == 0) && ...);
}

__device__ inline float sum_of_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
