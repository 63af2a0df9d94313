/* Kernels of a GPU of NVIDIA, launched through its driver. "config.h" lists what is in them:
 *
 *   IMAGE       place of the kernels' code in the data
 *   KERNELS(K)  K(name)
 *   ARRAYS(A)   A(place in the data, bytes)
 *
 * and "plans.h" holds the plan of each function: `run_0(at, n)` and so on, and the table `plans`.
 *
 * One call runs at a time, on the default stream. The model is copied to the GPU by the first one;
 * memory of a call is kept for the next.
 */
#include <pthread.h>

enum { THERE = kDLCUDA, SHARES = 0 };
#define PREDICT_THERE PUBLIC(predict_there)

typedef unsigned long long pointer;
typedef struct { pointer at; size_t size; } room;

#define DRIVER(F)                                                                                \
  F(cuInit, unsigned)                                                                            \
  F(cuDeviceGet, int *, int)                                                                     \
  F(cuDevicePrimaryCtxRetain, void **, int)                                                      \
  F(cuCtxPushCurrent_v2, void *)                                                                 \
  F(cuCtxPopCurrent_v2, void **)                                                                 \
  F(cuGetErrorString, int, const char **)                                                        \
  F(cuModuleLoadDataEx, void **, const void *, unsigned, int *, void **)                         \
  F(cuModuleGetFunction, void **, void *, const char *)                                          \
  F(cuFuncSetAttribute, void *, int, int)                                                        \
  F(cuMemAlloc_v2, pointer *, size_t)                                                            \
  F(cuMemFree_v2, pointer)                                                                       \
  F(cuMemcpyHtoDAsync_v2, pointer, const void *, size_t, void *)                                 \
  F(cuMemcpyDtoHAsync_v2, void *, pointer, size_t, void *)                                       \
  F(cuStreamSynchronize, void *)                                                                 \
  F(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
    void *, void **, void **)

#define POINTER(name, ...) static int (*name)(__VA_ARGS__);
DRIVER(POINTER)

enum { DYNAMIC_SHARED = 8, STATIC_SHARED = 49152 };

static pthread_mutex_t one_call = PTHREAD_MUTEX_INITIALIZER;
static void *context, *module;

#define NAME(name) #name,
static const char *const kernel_names[] = {KERNELS(NAME)};
enum { KERNEL_COUNT = sizeof kernel_names / sizeof *kernel_names };
static void *kernels[KERNEL_COUNT];

#define ARRAY(place, bytes) {place, bytes},
static const struct { int64_t place; size_t bytes; } arrays[] = {ARRAYS(ARRAY) {0, 0}};
enum { ARRAY_COUNT = sizeof arrays / sizeof *arrays - 1 };
static room model[ARRAY_COUNT + 1];

static int check(const char *what, int code) {
  const char *text = "unknown error";
  if (!code) return 0;
  cuGetErrorString(code, &text);
  snprintf(message, sizeof message, "cuda: %s failed with %d, %s", what, code, text);
  return -1;
}

/* Let a piece of memory have so many bytes or more; what was in it is lost. */
static int enlarge(room *piece, size_t size) {
  if (piece->size >= size && piece->at) return 0;
  if (piece->at && check("cuMemFree", cuMemFree_v2(piece->at))) return -1;
  piece->at = 0;
  if (check("cuMemAlloc", cuMemAlloc_v2(&piece->at, size ? size : 1))) return -1;
  piece->size = size;
  return 0;
}

static int upload(room *piece, const void *from, size_t size) {
  return enlarge(piece, size) ||
         check("cuMemcpyHtoD", cuMemcpyHtoDAsync_v2(piece->at, from, size, NULL));
}

static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b && (a < 0) != (b < 0)); }
static inline int64_t floor_mod(int64_t a, int64_t b) { return a - b * floor_div(a, b); }
static inline int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }

static int launch(int kernel, const int64_t *grid, const int64_t *block, int64_t shared,
                  void **arguments) {
  if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1) return 0;
  if (shared > STATIC_SHARED &&
      check("cuFuncSetAttribute", cuFuncSetAttribute(kernels[kernel], DYNAMIC_SHARED, (int)shared)))
    return -1;
  return check(kernel_names[kernel],
               cuLaunchKernel(kernels[kernel], grid[0], grid[1], grid[2], block[0], block[1],
                              block[2], (unsigned)shared, NULL, arguments, NULL));
}

#include "plans.h"

enum { COUNT = sizeof plans / sizeof *plans };

static int64_t block_of(int k) { return (void)k, 0; }
static int is_wide(int k) { return plans[k].is_wide; }

static int which(int64_t n) {
  int k = COUNT - 1;
  while (k && n < plans[k].smallest) --k;
  return k;
}

/* -- the driver, the kernels and the model; a call that fails leaves the rest to the next -------- */

static int find_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return fail("cuda: no driver of NVIDIA found (libcuda.so.1); run where there is a GPU");
#define FIND(name, ...)                                                                    \
  if (!(*(void **)&name = dlsym(library, #name)))                                          \
    return fail("cuda: the driver has no " #name "; update the driver of the GPU");
  DRIVER(FIND)
  int device;
  if (check("cuInit", cuInit(0)) || check("cuDeviceGet", cuDeviceGet(&device, DEVICE))) return -1;
  return check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
}

static int load(void) {
  if (!module && check("cuModuleLoadData",
                       cuModuleLoadDataEx(&module, tvm_forest_data + IMAGE, 0, NULL, NULL))) {
    module = NULL;
    return -1;
  }
  for (int i = 0; i < KERNEL_COUNT; ++i)
    if (check(kernel_names[i], cuModuleGetFunction(&kernels[i], module, kernel_names[i]))) return -1;
  for (int i = 0; i < ARRAY_COUNT; ++i)
    if (upload(&model[i], tvm_forest_data + arrays[i].place, arrays[i].bytes)) return -1;
  return check("cuStreamSynchronize", cuStreamSynchronize(NULL));
}

/* Begin to use the GPU on this thread, and cease to; nobody else uses it meanwhile. */
static int enter(void) {
  static int is_loaded;
  pthread_mutex_lock(&one_call);
  if ((!context && find_driver()) || check("cuCtxPushCurrent", cuCtxPushCurrent_v2(context))) {
    pthread_mutex_unlock(&one_call);
    return -1;
  }
  if (is_loaded || !load()) return is_loaded = 1, 0;
  cuCtxPopCurrent_v2(&(void *){NULL});
  pthread_mutex_unlock(&one_call);
  return -1;
}

static void leave(void) {
  cuCtxPopCurrent_v2(&(void *){NULL});
  pthread_mutex_unlock(&one_call);
}

/* -- calls --------------------------------------------------------------------------------------- */

static room of_rows, of_results[RESULTS];

/* Predict n rows of the GPU; results that are 0 are put into memory of our own. */
static int run_plan(int k, pointer rows, int64_t n, pointer *results) {
  pointer at[1 + ARRAY_COUNT + RESULTS] = {rows};
  for (int i = 0; i < ARRAY_COUNT; ++i) at[1 + i] = model[i].at;
  for (int i = 0; i < RESULTS; ++i) {
    if (!results[i] && enlarge(&of_results[i], n * OUTPUTS * size_of(i))) return -1;
    at[1 + ARRAY_COUNT + i] = results[i] ? results[i] : of_results[i].at;
  }
  return plans[k].run(at, n);
}

static int call(int k, const ROW *rows, int64_t n, void *const *results) {
  pointer made[RESULTS] = {0};
  if (enter()) return -1;
  int failed = upload(&of_rows, rows, n * width_of(is_wide(k)) * sizeof *rows) || run_plan(k, of_rows.at, n, made);
  for (int i = 0; i < RESULTS && !failed; ++i)
    failed = check("cuMemcpyDtoH", cuMemcpyDtoHAsync_v2(results[i], of_results[i].at,
                                                        n * OUTPUTS * size_of(i), NULL));
  failed = failed || check("cuStreamSynchronize", cuStreamSynchronize(NULL));
  leave();
  return failed ? -1 : 0;
}

SEEN int PUBLIC(predict_there)(const ROW *rows, int64_t n, RESULT *margin, VALUE *value) {
  if (check_count(n)) return WRONG;
  if (n == 0) return 0;
  if (!rows || !margin) return fail("rows or margin is a null pointer");
  if (!IS_VALUED && value) return fail("value must be NULL: the margins of this model are its values");
  if (REFUSES) return fail("the model refuses some values of rows; give rows of the host");
  pointer results[RESULTS] = {0};
  results[RESULTS - 1 - IS_VALUED] = (pointer)(uintptr_t)margin;
  if (IS_VALUED) results[RESULTS - 1] = (pointer)(uintptr_t)value;
  if (is_changed(is_wide(which(n)))) return fail("rows are made ready by the host; give rows of the host");
  if (enter()) return -1;
  int failed = run_plan(which(n), (pointer)(uintptr_t)rows, n, results) ||
               check("cuStreamSynchronize", cuStreamSynchronize(NULL));
  leave();
  return failed ? -1 : 0;
}
