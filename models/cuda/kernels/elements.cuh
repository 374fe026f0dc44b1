// Elements of models in memory (f32, f16, bf16), and of the cache (also fp8). All kernels compute with them in f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <type_traits>

// A kernel that is launched with at most this many threads per block, for which the compiler leaves enough registers.
#define KERNEL(THREADS_MAX) extern "C" __global__ void __launch_bounds__(THREADS_MAX)

// Number of elements of a head per thread.
constexpr int HELD = 8;
// Less than every score, and finite, so that the difference of two such values is a number.
constexpr float LOWEST = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

__device__ inline void store(float *at, float value) { *at = value; }
__device__ inline void store(__half *at, float value) { *at = __float2half_rn(value); }
__device__ inline void store(__nv_bfloat16 *at, float value) { *at = __float2bfloat16_rn(value); }

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

// An 8-bit float (E4M3): four bits of exponent, three of mantissa, no infinities. The largest number is 448, and 0x7f is
// NaN. Converted with integers, because GPUs before Ada have no instruction for it, and the fake driver has none.
struct Fp8 {
  uint8_t bits;
};

__device__ inline float widen(Fp8 value) {
  // Sign, exponent and mantissa at their places in an f32. The factor corrects the exponent's bias.
  const uint32_t bits = uint32_t(int32_t(uint32_t(value.bits) << 24) >> 4) & 0x87f00000u;
  return (bits & 0x7f00000u) == 0x7f00000u ? __uint_as_float(0x7fffffffu) : __uint_as_float(bits) * 0x1p120f;
}

// Rounds to the nearest number, and to the even one of two. Numbers beyond the largest become the largest.
__device__ inline void store(Fp8 *at, float value) {
  const float size = fminf(fabsf(value), 448.0f);
  const uint32_t bits = __float_as_uint(size);
  // Below 2^-6 the numbers are multiples of 2^-9, to which the addition rounds.
  const uint32_t rounded = size < 0x1p-6f
                               ? __float_as_uint(size + 0x1p14f) - __float_as_uint(0x1p14f)
                               : ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
  const uint32_t magnitude = value != value ? 0x7fu : rounded;
  at->bits = uint8_t(magnitude | (__float_as_uint(value) >> 24 & 0x80u));
}

// Elements in their memory format.
template <typename T>
struct __align__(sizeof(T) == 1 ? 8 : 16) Elements {
  T values[HELD];
};

// The elements at an address, which is a multiple of 16 bytes (8 for fp8) if `ALIGNED`. Otherwise, the first `count`
// elements, and zeros for the rest.
template <typename T, bool ALIGNED>
__device__ inline Elements<T> load(const T *from, int count) {
  Elements<T> loaded;
  if constexpr (ALIGNED) {
    using Piece = std::conditional_t<sizeof(T) == 1, uint2, uint4>;
    Piece *to = reinterpret_cast<Piece *>(&loaded);
#pragma unroll
    for (int at = 0; at < int(sizeof(loaded) / sizeof(Piece)); at++)
      to[at] = __ldg(reinterpret_cast<const Piece *>(from) + at);
  } else {
#pragma unroll
    for (int at = 0; at < HELD; at++) loaded.values[at] = at < count ? from[at] : T{};
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
