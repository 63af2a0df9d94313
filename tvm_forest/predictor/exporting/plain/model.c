/* A forest of ${trees} trees in C99, as `tvm-forest export --to c` writes it. Compile it with
 * -ffp-contract=off, or what else keeps products and sums apart, and never with -ffast-math.
 */
#include "model.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "numbers are computed with more bits than they have; on x86 give -msse2 -mfpmath=sse"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math gives other predictions"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#ifdef __GNUC__
#define MAYBE_UNUSED __attribute__((unused))
#else
#define MAYBE_UNUSED
#endif

MAYBE_UNUSED static float float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

MAYBE_UNUSED static double double_of_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

MAYBE_UNUSED static uint64_t bits_of_double(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

${powers}${arrays}

int ${prefix}predict(const ${row} *rows, int64_t n, ${margin} *margin, ${value} *value) {
  if (n < 0) return -1;
${refuse}${body}
${copy}  return 0;
}
