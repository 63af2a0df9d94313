/* Calls exported models as programs do, and as they should not; prints counts as JSON.
 *
 *   main CALLS SEED [LIBRARY ...]
 *
 * "models.h" says which models are linked, MODELS(M): M(prefix, row, margin, value), the types of C.
 * The working folder has, for each, the files rows<k> and margin<k>, POOL rows and what they give.
 * Rows and results lie in memory of just the size that they need, so that a sanitizer sees every byte
 * that is read or written beyond. Libraries are opened, called and closed again, a few times each;
 * they are the models in order.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

typedef struct {
  const char *prefix;
  size_t row, margin, value;
  const char *(*error)(void);
  int (*check)(void);
  int64_t (*features)(void), (*outputs)(void), (*labels)(void), (*classes)(void), (*categories)(int64_t);
  const char *(*feature_name)(int64_t), *(*class_name)(int64_t), *(*category_name)(int64_t, int64_t);
  int (*predict)(const void *, int64_t, void *, void *, int);
  int (*predict_labels)(const void *, int64_t, int64_t *, int);
  char *rows, *margins;
} model;

#define WRAP(p, R, M, V)                                                                        \
  static int p##of(const void *r, int64_t n, void *m, void *v, int j) { return p##predict(r, n, m, v, j); } \
  static int p##labels_of(const void *r, int64_t n, int64_t *l, int j) { return p##predict_labels(r, n, l, j); }
MODELS(WRAP)
#define LIST(p, R, M, V)                                                                          \
  {#p, sizeof(R), sizeof(M), sizeof(V), p##error, p##check, p##features, p##outputs, p##labels,   \
   p##classes, p##categories, p##feature_name, p##class_name, p##category_name, p##of, p##labels_of, NULL, NULL},
static model models[] = {MODELS(LIST)};
enum { COUNT = sizeof models / sizeof *models };

static struct { long calls, rows, equal, refused, wrong, loads; } counts;
static uint64_t state;

static uint64_t draw(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

static int64_t below(int64_t n) { return (int64_t)(draw() % (uint64_t)n); }

static void wrong(const model *m, const char *what, int64_t n, int jobs) {
  __atomic_add_fetch(&counts.wrong, 1, __ATOMIC_RELAXED);
  fprintf(stderr, "wrong: %s %s, n %lld, n_jobs %d: %s\n", m->prefix, what, (long long)n, jobs, m->error());
}

static void expect(const model *m, int code, int right, const char *what) {
  __atomic_add_fetch(&counts.calls, 1, __ATOMIC_RELAXED);
  if (code) __atomic_add_fetch(&counts.refused, 1, __ATOMIC_RELAXED);
  if (code != right || (code && !*m->error())) wrong(m, what, code, right);
}

static void *exactly(size_t bytes) {
  void *made = malloc(bytes ? bytes : 1);
  if (!made) exit(3);
  return made;
}

static char *read_all(const char *name, int k, size_t bytes) {
  char path[64], *to = exactly(bytes);
  snprintf(path, sizeof path, "%s%d", name, k);
  FILE *in = fopen(path, "rb");
  if (!in || fread(to, 1, bytes, in) != bytes) exit(4);
  fclose(in);
  return to;
}

/* Predict rows of the pool; every margin is known. */
static void call_known(const model *m, int64_t n, int jobs) {
  size_t row = m->features() * m->row, margin = m->outputs() * m->margin;
  char *rows = exactly(n * row), *found = exactly(n * margin), *right = exactly(n * margin);
  char *values = below(2) ? exactly(n * m->outputs() * m->value) : NULL;
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = below(POOL);
    memcpy(rows + i * row, m->rows + at * row, row);
    memcpy(right + i * margin, m->margins + at * margin, margin);
  }
  int code = m->predict(rows, n, found, values, jobs);
  __atomic_add_fetch(&counts.calls, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch(&counts.rows, n, __ATOMIC_RELAXED);
  if (code || memcmp(found, right, n * margin)) wrong(m, "margins", n, jobs);
  else __atomic_add_fetch(&counts.equal, 1, __ATOMIC_RELAXED);
  free(rows), free(found), free(right), free(values);
}

/* Predict rows of any bits: together they give what each gives by itself, or all are refused. */
static void call_noise(const model *m, int64_t n, int jobs) {
  size_t row = m->features() * m->row, margin = m->outputs() * m->margin, value = m->outputs() * m->value;
  int64_t labels = m->labels();
  char *rows = exactly(n * row), *found = exactly(n * margin), *values = exactly(n * value);
  char *one = exactly(margin), *one_value = exactly(value);
  int64_t *chosen = exactly(n * labels * 8), *chosen_one = exactly(labels * 8);
  for (size_t i = 0; i < n * row; ++i) rows[i] = below(4) ? (char)draw() : (char)(below(2) ? 0 : 0x7f);
  int code = m->predict(rows, n, found, values, jobs), failed = 0;
  int code_of_labels = m->predict_labels(rows, n, chosen, jobs);
  if ((code_of_labels != 0) != (labels ? code != 0 : 1)) failed = 1;
  for (int64_t i = 0; i < n && !code && !failed; ++i) {
    failed = m->predict(rows + i * row, 1, one, one_value, 1) ||
             memcmp(one, found + i * margin, margin) || memcmp(one_value, values + i * value, value);
    if (labels && !failed)
      failed = m->predict_labels(rows + i * row, 1, chosen_one, 1) ||
               memcmp(chosen_one, chosen + i * labels, labels * 8);
  }
  __atomic_add_fetch(&counts.calls, 2 + (code ? 0 : 2 * n), __ATOMIC_RELAXED);
  __atomic_add_fetch(&counts.rows, n, __ATOMIC_RELAXED);
  if (code) __atomic_add_fetch(&counts.refused, 1, __ATOMIC_RELAXED);
  else __atomic_add_fetch(&counts.equal, 1, __ATOMIC_RELAXED);
  if (failed) wrong(m, "noise", n, jobs);
  free(rows), free(found), free(values), free(one), free(one_value), free(chosen), free(chosen_one);
}

static void call_badly(const model *m) {
  static const int64_t counts_of_rows[] = {-1, -2, -600, INT64_MIN, INT64_MAX, INT64_MAX / 2, 1LL << 62, 1LL << 60};
  static const int jobs[] = {0, -2, -3, INT32_MIN};
  char *rows = exactly(m->features() * m->row), *margin = exactly(m->outputs() * m->margin);
  int64_t *labels = exactly(8 * (m->labels() ? m->labels() : 1));
  memcpy(rows, m->rows, m->features() * m->row);
  int64_t n = counts_of_rows[below(8)];
  int j = jobs[below(4)];
  expect(m, m->predict(rows, n, margin, NULL, 1), -1, "n");
  expect(m, m->predict(rows, 1, margin, NULL, j), -1, "n_jobs");
  expect(m, m->predict(NULL, 1, margin, NULL, 1), -1, "no rows");
  expect(m, m->predict(rows, 1, NULL, NULL, 1), -1, "no margin");
  expect(m, m->predict(NULL, 0, NULL, NULL, 1), 0, "no rows at all");
  expect(m, m->predict_labels(rows, n, labels, 1), -1, "n of labels");
  expect(m, m->predict_labels(rows, 1, labels, j), -1, "n_jobs of labels");
  expect(m, m->predict_labels(NULL, 1, labels, 1), -1, "no rows for labels");
  expect(m, m->predict_labels(rows, 1, NULL, 1), -1, "no labels");
  expect(m, m->check(), 0, "check");
  free(rows), free(margin), free(labels);
}

static int64_t any_number(int64_t count) {
  int64_t odd[] = {-1, 0, count - 1, count, count + 1, INT64_MIN, INT64_MAX, (int64_t)draw(), below(9)};
  return odd[below(9)];
}

static void ask_names(const model *m) {
  int64_t k = any_number(m->features()), code = any_number(4);
  const char *names[] = {m->feature_name(k), m->class_name(any_number(m->classes())), m->category_name(k, code)};
  size_t length = 0;
  for (int i = 0; i < 3; ++i) length += names[i] ? strlen(names[i]) : 0;
  if (m->categories(k) < 0 || (k < 0 && m->categories(k)) || length > 1 << 20) wrong(m, "names", k, 0);
  if ((k < 0 || k >= m->features()) && (names[0] || names[2])) wrong(m, "a name of no feature", k, 0);
  __atomic_add_fetch(&counts.calls, 5, __ATOMIC_RELAXED);
}

static int64_t some_rows(void) {
  static const int64_t few[] = {0, 1, 1, 2, 3, 5, 7, 8, 9};
  static const int64_t many[] = {15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 255, 257, 511, 512, 513, 600};
  return below(8) ? few[below(9)] : many[below(16)];
}

static void fuzz(long calls) {
  static const int jobs[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 64, -1};
  while (counts.calls < calls) {
    const model *m = &models[below(COUNT)];
    switch (below(8)) {
      case 0: call_badly(m); break;
      case 1: ask_names(m); break;
      case 2: call_noise(m, below(8), jobs[below(16)]); break;
      default: call_known(m, some_rows(), jobs[below(16)]);
    }
  }
}

/* -- threads of the caller, each of which calls all models --------------------------------------- */

static pthread_mutex_t drawing = PTHREAD_MUTEX_INITIALIZER;

static void *call_all(void *number) {
  for (int k = 0; k < 4 * COUNT; ++k) {
    const model *m = &models[(k + (intptr_t)number) % COUNT];
    int64_t n = k % 3 ? 70 : 3;
    size_t row = m->features() * m->row, margin = m->outputs() * m->margin;
    char *found = exactly(n * margin);
    int code = m->predict(m->rows, n, found, NULL, 1 + k % 2);
    pthread_mutex_lock(&drawing);
    ++counts.calls;
    if (code || memcmp(found, m->margins, n * margin)) wrong(m, "in a thread", n, 1);
    else ++counts.equal;
    pthread_mutex_unlock(&drawing);
    if (m->predict(m->rows + row, -1, found, NULL, 1) != -1 || strcmp(m->error(), "n is negative"))
      wrong(m, "the error of a thread", -1, 1);
    free(found);
  }
  return NULL;
}

static void call_from_threads(void) {
  pthread_t made[8];
  for (intptr_t i = 0; i < 8; ++i) pthread_create(&made[i], NULL, call_all, (void *)i);
  for (int i = 0; i < 8; ++i) pthread_join(made[i], NULL);
}

/* -- libraries that come and go ------------------------------------------------------------------ */

static void load(const char *path, const model *m, int times) {
  for (int i = 0; i < times; ++i, ++counts.loads) {
    void *library = dlopen(path, RTLD_NOW | (i % 2 ? RTLD_LOCAL : RTLD_GLOBAL));
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(5);
    int (*predict)(const void *, int64_t, void *, void *, int);
    *(void **)&predict = dlsym(library, "tvm_forest_predict");
    size_t margin = m->outputs() * m->margin;
    char *found = exactly(POOL * margin);
    if (predict(m->rows, POOL, found, NULL, 1 + i % 3) || memcmp(found, m->margins, POOL * margin))
      wrong(m, "of a library", POOL, 1 + i % 3);
    free(found);
    ++counts.calls;
    if (dlclose(library)) exit(6);
  }
}

int main(int count, char **words) {
  if (count < 3) return 2;
  state = 0x9E3779B97F4A7C15u ^ strtoull(words[2], NULL, 10) * 0xD1342543DE82EF95u;
  for (int k = 0; k < COUNT; ++k) {
    models[k].rows = read_all("rows", k, POOL * models[k].features() * models[k].row);
    models[k].margins = read_all("margin", k, POOL * models[k].outputs() * models[k].margin);
  }
  call_from_threads();
  for (int turn = 0; turn < 3; ++turn)
    for (int i = 3; i < count; ++i) load(words[i], &models[i - 3], 4);
  fuzz(strtol(words[1], NULL, 10));
  for (int k = 0; k < COUNT; ++k) free(models[k].rows), free(models[k].margins);
  printf("{\"models\": %d, \"calls\": %ld, \"rows\": %ld, \"equal\": %ld, \"refused\": %ld, \"wrong\": %ld, \"loads\": %ld}\n",
         COUNT, counts.calls, counts.rows, counts.equal, counts.refused, counts.wrong, counts.loads);
  return counts.wrong > 0;
}
