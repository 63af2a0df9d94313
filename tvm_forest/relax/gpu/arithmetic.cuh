// Exact arithmetic for kernels that TVM compiles, by nvcc or NVRTC, with its own options.
//
// TVM compiles with fast math, which treats subnormal numbers as zero, fuses products with sums,
// and approximates quotients and powers of float. It does not change PTX in asm statements, nor
// functions of double: so each function here is one IEEE 754 instruction in PTX, or is computed in
// double. For compilers of CPUs, the same functions are written in C++.
#ifndef TVMF_ARITHMETIC
#define TVMF_ARITHMETIC
#define TVMF static __forceinline__ __device__
#ifdef __CUDA_ARCH__
#define TVMF_WRITTEN(array) asm("" : "+l"(array));  // TVM's kernel calls it "restrict"
#define TVMF_OP(name, ptx, plain, type, dtype, bits, c) \
  TVMF type tvmf_##name##_##dtype(type a, type b) { type r; asm(ptx "." bits " %0, %1, %2;" : "=" c(r) : c(a), c(b)); return r; }
#define TVMF_TEST(name, ptx, plain, type, dtype, bits, c) \
  TVMF bool tvmf_##name##_##dtype(type a, type b) { int r; asm("{ .reg .pred p; setp." ptx "." bits " p, %1, %2; selp.s32 %0, 1, 0, p; }" : "=r"(r) : c(a), c(b)); return r != 0; }
#define TVMF_ABS(type, dtype, bits, c) \
  TVMF type tvmf_fabs_##dtype(type a) { type r; asm("abs." bits " %0, %1;" : "=" c(r) : c(a)); return r; }
TVMF double tvmf_widen(float a) { double r; asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(a)); return r; }
TVMF float tvmf_narrow(double a) { float r; asm("cvt.rn.f32.f64 %0, %1;" : "=f"(r) : "d"(a)); return r; }
#else
#define TVMF_WRITTEN(array)
#define TVMF_OP(name, ptx, plain, type, dtype, bits, c) \
  TVMF type tvmf_##name##_##dtype(type a, type b) { return plain; }
#define TVMF_TEST(name, ptx, plain, type, dtype, bits, c) \
  TVMF bool tvmf_##name##_##dtype(type a, type b) { return plain; }
#define TVMF_ABS(type, dtype, bits, c) TVMF type tvmf_fabs_##dtype(type a) { return a < 0 ? -a : a + 0; }
TVMF double tvmf_widen(float a) { return a; }
TVMF float tvmf_narrow(double a) { return (float)a; }
#endif
#define TVMF_ALL(type, dtype, bits, c) \
  TVMF_OP(add, "add.rn", a + b, type, dtype, bits, c) \
  TVMF_OP(sub, "sub.rn", a - b, type, dtype, bits, c) \
  TVMF_OP(mul, "mul.rn", a * b, type, dtype, bits, c) \
  TVMF_OP(div, "div.rn", a / b, type, dtype, bits, c) \
  TVMF_OP(min, "min", a < b || b != b ? a : b, type, dtype, bits, c) \
  TVMF_OP(max, "max", a > b || b != b ? a : b, type, dtype, bits, c) \
  TVMF_TEST(lt, "lt", a < b, type, dtype, bits, c) \
  TVMF_TEST(le, "le", a <= b, type, dtype, bits, c) \
  TVMF_TEST(gt, "gt", a > b, type, dtype, bits, c) \
  TVMF_TEST(ge, "ge", a >= b, type, dtype, bits, c) \
  TVMF_TEST(eq, "eq", a == b, type, dtype, bits, c) \
  TVMF_TEST(ne, "neu", a != b, type, dtype, bits, c) \
  TVMF_ABS(type, dtype, bits, c)
TVMF_ALL(float, float32, "f32", "f")
TVMF_ALL(double, float64, "f64", "d")
#define TVMF_FUNCTION(name) \
  TVMF double tvmf_##name##_float64(double a) { return name(a); } \
  TVMF float tvmf_##name##_float32(float a) { return tvmf_narrow(name(tvmf_widen(a))); }
TVMF_FUNCTION(exp)
TVMF_FUNCTION(exp2)
TVMF_FUNCTION(log1p)
TVMF float tvmf_atomic_add_float32(float* p, float v) { return atomicAdd(p, v); }
TVMF double tvmf_atomic_add_float64(double* p, double v) { return atomicAdd(p, v); }
#endif
