/* Time single rows: a library of `export_library`, and a few lines of C on the same model.
 *
 *   one_row LIBRARY NODES ROWS COUNT FEATURES TREES
 *
 * The depth of the trees is the macro DEPTH; 0 for no C. All runs on one core.
 * NODES holds complete trees for the C, level by level, a multiple of 8: float32 thresholds and int32
 * features of the inner nodes of all trees, then float32 leaves. ROWS holds float32 rows, which come
 * in rotation.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOGETHER = 8, TURNS = 40000, BATCH = 16 };

typedef int Predict(const float *, int64_t, float *, float *, int);

struct node { float threshold; int32_t feature; };

static const struct node *nodes;
static const float *leaves;
static long trees, width;
enum { depth = DEPTH };

static void *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) exit((perror(path), 1));
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  void *data = aligned_alloc(64, (size + 63) & ~63L);
  rewind(file);
  if (fread(data, 1, size, file) != (size_t)size) exit(1);
  fclose(file);
  return data;
}

/* Eight trees together, hop by hop; missing values go to the right. */
__attribute__((noinline)) static float walk(const float *row) {
  long inner = (1L << depth) - 1;
  float sum = 0;
  for (long tree = 0; tree < trees; tree += TOGETHER) {
    long at[TOGETHER] = {0};
    for (long hop = 0; hop < depth; ++hop)
#pragma GCC unroll 8
      for (long k = 0; k < TOGETHER; ++k) {
        const struct node *node = nodes + (tree + k) * inner + at[k];
        at[k] = 2 * at[k] + 1 + !(row[node->feature] < node->threshold);
      }
    for (long k = 0; k < TOGETHER; ++k) sum += leaves[(tree + k) * (inner + 1) + at[k] - inner];
  }
  return sum;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int nothing(const float *row, int64_t n, float *margin, float *value, int n_jobs) { return 0; }

static int walk_one(const float *row, int64_t n, float *margin, float *value, int n_jobs) {
  *margin = walk(row);
  return 0;
}

/* Print percentiles 50, 99 and 99.9 of single calls, and the least mean of calls in a row, in ns. */
static void report(const char *name, Predict *predict, const float *rows, long count) {
  static double each[TURNS];
  double least = 1e9;
  float margin = 0, total = 0;
  for (long i = 0; i < TURNS; ++i) {
    const float *row = rows + i % count * width;
    double begin = seconds();
    predict(row, 1, &margin, NULL, 1);
    each[i] = seconds() - begin;
    total += margin;
  }
  qsort(each, TURNS, sizeof *each, ascending);
  for (long i = 0; i < TURNS / BATCH; ++i) {
    double begin = seconds();
    for (long k = 0; k < BATCH; ++k) {
      const float *row = rows + (i * BATCH + k) % count * width;
      predict(row, 1, &margin, NULL, 1);
      total += margin;
    }
    double mean = (seconds() - begin) / BATCH;
    least = mean < least ? mean : least;
  }
  printf("%s", name);
  for (int k = 0; k < 3; ++k) printf(" %.0f", 1e9 * each[TURNS / 1000 * (int[]){500, 990, 999}[k]]);
  printf(" %.0f %g\n", 1e9 * least, total);
}

int main(int argc, char **argv) {
  if (argc != 7) return 2;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(sched_getcpu(), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  Predict *predict = (Predict *)dlsym(library, "tvm_forest_predict");
  long count = atol(argv[4]);
  width = atol(argv[5]), trees = atol(argv[6]);
  nodes = read_file(argv[2]);
  const float *rows = read_file(argv[3]);
  leaves = (const float *)(nodes + trees * ((1L << depth) - 1));
  report("clock", nothing, rows, 1);
  for (int turn = 0; turn < 3; ++turn) {
    report("library", predict, rows, count);
    if (DEPTH) report("c", walk_one, rows, count);
  }
}
