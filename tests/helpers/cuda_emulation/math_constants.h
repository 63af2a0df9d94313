// CUDA on a CPU: found in the place of a header of CUDA, it makes CUDA C++ compile with g++.
//
// What threads do when they meet is in libcuda.cpp, with which kernels are linked.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // those of C++ take twice as long to read as all kernels
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shared_memory")))
#define VECTORS(kind, name) \
  struct name##2 { kind x, y; } __attribute__((aligned(2 * sizeof(kind)))); \
  struct name##4 { kind x, y, z, w; } __attribute__((aligned(4 * sizeof(kind)))); \
  inline name##2 make_##name##2(kind x, kind y) { return {x, y}; } \
  inline name##4 make_##name##4(kind x, kind y, kind z, kind w) { return {x, y, z, w}; }
VECTORS(float, float)
VECTORS(double, double)
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(long long, longlong)
VECTORS(unsigned short, ushort)
#undef VECTORS
#define alignas(bytes) __attribute__((aligned(bytes)))
#define OF_FLOAT(name) inline float name(float x) { return name##f(x); }
OF_FLOAT(exp) OF_FLOAT(exp2) OF_FLOAT(log) OF_FLOAT(log1p) OF_FLOAT(sqrt) OF_FLOAT(fabs)
OF_FLOAT(floor) OF_FLOAT(ceil) OF_FLOAT(trunc)
#undef OF_FLOAT
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF double(INFINITY)
#define CUDART_NAN double(NAN)

namespace emulation {
struct Size { unsigned x, y, z; };
extern Size thread_at, block_at, block_size, grid_size;
extern unsigned lane;              // of the thread in its warp
void meet_block();                 // returns once all threads of the block have called it
void meet_warp(unsigned mask);     // the same for some lanes of a warp
void* slot(unsigned lane);         // eight bytes of a lane of the warp

template <class T> T shuffled(unsigned mask, T value, unsigned source) {
  memcpy(slot(lane), &value, sizeof(T));
  meet_warp(mask);
  memcpy(&value, slot(source % 32), sizeof(T));
  meet_warp(mask);
  return value;
}
}  // namespace emulation

#define threadIdx emulation::thread_at
#define blockIdx emulation::block_at
#define blockDim emulation::block_size
#define gridDim emulation::grid_size

extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));
extern "C" inline __attribute__((used)) void shared_memory_of(char** begin, char** end) {
  *begin = __start_shared_memory, *end = __stop_shared_memory;
}

inline void __syncthreads() { emulation::meet_block(); }
inline void __syncwarp(unsigned mask = ~0u) { emulation::meet_warp(mask); }
inline unsigned __activemask() { return ~0u; }

template <class T> T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  unsigned lane = emulation::lane;
  return emulation::shuffled(mask, v, lane - lane % width + source % width);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
  unsigned lane = emulation::lane;
  return emulation::shuffled(mask, v, lane % width + by < unsigned(width) ? lane + by : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
  unsigned lane = emulation::lane;
  return emulation::shuffled(mask, v, lane % width >= by ? lane - by : lane);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
  return emulation::shuffled(mask, v, emulation::lane ^ by);
}

inline unsigned __ballot_sync(unsigned mask, bool outcome) {
  unsigned bits = 0;
  *(bool*)emulation::slot(emulation::lane) = outcome;
  emulation::meet_warp(mask);
  for (unsigned k = 0; k < 32; ++k) bits |= unsigned((mask >> k & 1) && *(bool*)emulation::slot(k)) << k;
  emulation::meet_warp(mask);
  return bits;
}

template <class T> T atomicAdd(T* p, T v) {
  T old = *p;
  *p = old + v;
  return old;
}
inline double __longlong_as_double(long long bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
template <class T> T max(T a, T b) { return a < b ? b : a; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
