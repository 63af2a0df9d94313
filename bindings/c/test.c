/* Compares a model with what Python predicts, which expected.txt holds as bits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model.h"

enum { MOST = 64 };

static tvm_forest_row rows[MOST * TVM_FOREST_FEATURES];
static tvm_forest_margin margin[MOST * TVM_FOREST_OUTPUTS], wanted[MOST * TVM_FOREST_OUTPUTS];
static tvm_forest_value value[MOST * TVM_FOREST_OUTPUTS], worth[MOST * TVM_FOREST_OUTPUTS];

/* Read a number of 4 or 8 bytes, given as its bits; small C libraries read no 64 of them. */
static int read(FILE *from, void *to, size_t size) {
  char word[17];
  uint64_t wide = 0;
  if (fscanf(from, "%16s", word) != 1) return 0;
  for (const char *at = word; *at; ++at) wide = wide * 16 + (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
  uint32_t narrow = (uint32_t)wide;
  memcpy(to, size == 4 ? (void *)&narrow : (void *)&wide, size);
  return 1;
}

/* Whether numbers are equal to the bit, or both NaN, or so many units in the last place apart. */
static int same(double a, double b, int ulps) {
  return !memcmp(&a, &b, sizeof a) || (a != a && b != b) || (ulps && fabs(a - b) <= ulps * fabs(b) * 2.3e-16);
}

static int fail(const char *what, int k) {
  printf("failed: %s, number %d\n", what, k);
  return 1;
}

int main(void) {
  int features, outputs, labels, n, ulps, label;
  FILE *file = fopen("expected.txt", "r");
  if (!file || fscanf(file, "%d %d %d %d %d", &features, &outputs, &labels, &n, &ulps) != 5) return fail("expected.txt", 0);
  if (features != TVM_FOREST_FEATURES || outputs != TVM_FOREST_OUTPUTS || n > MOST) return fail("its shape", 0);
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < features; ++k)
      if (!read(file, &rows[i * features + k], sizeof *rows)) return fail("rows", i);
    for (int k = 0; k < outputs; ++k)
      if (!read(file, &wanted[i * outputs + k], sizeof *wanted)) return fail("margins", i);
    for (int k = 0; k < outputs; ++k)
      if (!read(file, &worth[i * outputs + k], sizeof *worth)) return fail("values", i);
    for (int k = 0; k < labels; ++k)
      if (fscanf(file, "%d", &label) != 1) return fail("labels", i);
  }
  fclose(file);
  const int sizes[] = {0, 1, 7, n};
  for (int s = 0; s < 4; ++s) {
    memset(margin, 0, sizeof margin), memset(value, 0, sizeof value);
    if (tvm_forest_predict(rows, sizes[s], margin, value)) return fail("a call", sizes[s]);
    for (int k = 0; k < sizes[s] * outputs; ++k) {
      if (!same(margin[k], wanted[k], 0)) return fail("other margins", k);
      if (!same(value[k], worth[k], ulps)) return fail("other values", k);
    }
  }
  if (tvm_forest_predict(rows, -1, margin, value) != -1) return fail("a negative number of rows", 0);
  printf("all tests passed: %d rows, %d outputs\n", n, outputs);
  return 0;
}
