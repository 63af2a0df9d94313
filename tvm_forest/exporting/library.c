/* What stands around the compiled functions of a model in a shared library: C functions, the entry
 * "main" for apache-tvm-ffi, and the arrays of the model. "model.h" names what is in them:
 *
 *   ROW, RESULT, VALUE  types of rows, margins and values; IS_VALUED, 1 if these differ
 *   FEATURES, OUTPUTS   columns of a row, results of a row; RESULTS, buffers that a function writes
 *   FUNCTIONS(F)        F(smallest batch, function, rows of a block or 0, AT(place of an array) ...)
 *   REFUSED(x)          whether the model takes no such value
 */
#include <dlpack/dlpack.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include "model.h"

#define API __attribute__((visibility("default")))

__asm__(
    ".section .rodata\n.balign 64\ntvm_forest_data:\n.incbin \"" DATA
    "\"\n.previous\n");
extern const char tvm_forest_data[];

static _Thread_local char message[256];

/* -- what TVM's code calls; a process with TVM or apache-tvm-ffi brings its own ----------------- */

typedef void *Allocate(int, int, uint64_t, int, int);
typedef int Free(int, int, void *);
typedef int Task(int, void *, void *);
typedef int Launch(Task *, void *, int);
struct tasks { void *barrier; int32_t count; };

static void *allocate(int kind, int device, uint64_t size, int code, int bits) {
  return aligned_alloc(64, (size + 63) & ~(uint64_t)63);
}

static int release(int kind, int device, void *data) {
  free(data);
  return 0;
}

static int launch(Task *task, void *data, int count) {
  struct tasks all = {NULL, 1};
  return task(0, &all, data);
}

extern Allocate *__TVMBackendAllocWorkspace __attribute__((weak));
extern Free *__TVMBackendFreeWorkspace __attribute__((weak));
extern Launch *__TVMBackendParallelLaunch __attribute__((weak));

__attribute__((constructor)) static void serve(void) {
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = allocate;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = release;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = launch;
}

__attribute__((weak)) void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts,
                                                             int32_t count) {
  message[0] = 0;
  for (int i = 0; i < count; ++i)
    if (parts[i]) strncat(message, parts[i], sizeof message - strlen(message) - 1);
}

/* -- the model --------------------------------------------------------------------------------- */

#define AT(place) tvm_forest_data + place

typedef int Function(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);
#define DECLARE(smallest, function, block, ...) Function function;
FUNCTIONS(DECLARE)
#define FUNCTION(smallest, function, block, ...) {smallest, block, function, {__VA_ARGS__}},
static const struct { int64_t smallest, block; Function *call; const char *model[64]; } functions[] = {
    FUNCTIONS(FUNCTION)};
enum { COUNT = sizeof functions / sizeof *functions };

static int which(int64_t n) {
  int k = COUNT - 1;
  while (k && n < functions[k].smallest) --k;
  return k;
}

static int call(int k, const ROW *rows, int64_t n, void *const *results) {
  DLTensor tensors[RESULTS + 1];
  TVMFFIAny arguments[RESULTS + 2], nothing = {0};
  int64_t row_shape[2] = {n, FEATURES}, result_shape[2] = {n, OUTPUTS};
  memset(arguments, 0, sizeof arguments);
  tensors[0] = (DLTensor){(void *)rows, {kDLCPU, 0}, 2, ROW_TYPE, row_shape, NULL, 0};
  for (int i = 0; i < RESULTS; ++i) {
    DLDataType type = {kDLFloat, 8 * (i == RESULTS - 1 && IS_VALUED ? sizeof(VALUE) : sizeof(RESULT)), 1};
    tensors[i + 1] = (DLTensor){results[i], {kDLCPU, 0}, 2, type, result_shape, NULL, 0};
  }
  for (int i = 0; i < RESULTS + 2; ++i) {
    arguments[i].type_index = i == 1 ? kTVMFFIOpaquePtr : kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = i == 1 ? (void *)functions[k].model : &tensors[i ? i - 1 : 0];
  }
  return functions[k].call(NULL, arguments, RESULTS + 2, &nothing);
}

static int fail(const char *text) {
  snprintf(message, sizeof message, "%s", text);
  return -1;
}

API const char *tvm_forest_error(void) { return message; }
API int64_t tvm_forest_features(void) { return FEATURES; }
API int64_t tvm_forest_outputs(void) { return OUTPUTS; }

API int tvm_forest_predict(const ROW *rows, int64_t n, RESULT *margin, VALUE *value) {
  if (n < 0) return fail("n is negative");
  if (n == 0) return 0;
  if (!rows || !margin) return fail("rows or margin is a null pointer");
  for (int64_t i = 0; i < n * FEATURES; ++i)
    if (REFUSED(rows[i])) return fail("rows hold a value that the model refuses: " WHAT_IS_REFUSED);
  RESULT *sums = NULL;
  VALUE *values = value;
  if (RESULTS - IS_VALUED > 1) sums = malloc(n * OUTPUTS * sizeof *sums);
  if (IS_VALUED && !value) values = malloc(n * OUTPUTS * sizeof *values);
  int failed = (RESULTS - IS_VALUED > 1 && !sums) || (IS_VALUED && !values);
  if (failed) fail("out of memory");
  int k = which(n);
  int64_t block = functions[k].block, left = block > 0 && n > block ? n % block : 0;
  for (int part = 0; part < 2 && !failed; ++part) {
    int64_t first = part ? n - left : 0, here = part ? left : n - left, place = first * OUTPUTS;
    void *results[] = {sums ? (void *)(sums + place) : (void *)(margin + place), margin + place, NULL};
    if (here == 0) continue;
    if (!sums) results[1] = values ? values + place : NULL;
    else results[2] = values ? values + place : NULL;
    failed = call(part ? which(here) : k, rows + first * FEATURES, here, results);
  }
  if (!IS_VALUED && value && !failed)
    for (int64_t i = 0; i < n * OUTPUTS; ++i) value[i] = (VALUE)margin[i];
  if (values != value) free(values);
  free(sums);
  return failed;
}

/* -- the entry for apache-tvm-ffi: main(rows, margin[, value]) ---------------------------------- */

void TVMFFIErrorSetRaisedFromCStr(const char *, const char *) __attribute__((weak));

static int raise(const char *kind, const char *text) {
  fail(text);
  if (TVMFFIErrorSetRaisedFromCStr) TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

static DLTensor *tensor_of(const TVMFFIAny *argument) {
  if (argument->type_index == kTVMFFIDLTensorPtr) return argument->v_ptr;
  if (argument->type_index == kTVMFFITensor)
    return (DLTensor *)((char *)argument->v_obj + sizeof(TVMFFIObject));
  return NULL;
}

static int is_wrong(const DLTensor *t, int64_t n, int64_t width, int bits) {
  if (t->device.device_type != kDLCPU || t->ndim != 2 || t->shape[1] != width) return 1;
  if (n >= 0 && t->shape[0] != n) return 1;
  if (t->dtype.code != kDLFloat || t->dtype.bits != bits || t->dtype.lanes != 1) return 1;
  return t->strides && t->shape[0] > 1 && (t->strides[0] != width || (width > 1 && t->strides[1] != 1));
}

API int __tvm_ffi_main(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  DLTensor *tensors[3] = {NULL, NULL, NULL};
  if (count < 2 || count > 3) return raise("TypeError", "expected main(rows, margin[, value])");
  for (int i = 0; i < count; ++i)
    if (!(tensors[i] = tensor_of(&arguments[i])))
      return raise("TypeError", "expected main(rows, margin[, value]), all of them tensors");
  if (is_wrong(tensors[0], -1, FEATURES, 8 * sizeof(ROW)))
    return raise("ValueError", "rows: expected " ROWS_TEXT ", one row behind the other");
  int64_t n = tensors[0]->shape[0];
  if (is_wrong(tensors[1], n, OUTPUTS, 8 * sizeof(RESULT)))
    return raise("ValueError", "margin: expected " MARGIN_TEXT ", one row behind the other");
  if (tensors[2] && is_wrong(tensors[2], n, OUTPUTS, 8 * sizeof(VALUE)))
    return raise("ValueError", "value: expected " VALUE_TEXT ", one row behind the other");
  const ROW *rows = (const ROW *)((char *)tensors[0]->data + tensors[0]->byte_offset);
  RESULT *margin = (RESULT *)((char *)tensors[1]->data + tensors[1]->byte_offset);
  VALUE *value = tensors[2] ? (VALUE *)((char *)tensors[2]->data + tensors[2]->byte_offset) : NULL;
  memset(result, 0, sizeof *result);
  if (tvm_forest_predict(rows, n, margin, value)) return raise("RuntimeError", message);
  return 0;
}
