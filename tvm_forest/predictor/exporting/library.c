/* What stands around the compiled functions of a model in a shared library: C functions, the entry
 * "main" for apache-tvm-ffi, and the arrays of the model. The linker keeps all other names inside,
 * so that a process may hold several such libraries. "model.h" names what is in them:
 *
 *   PREFIX              what the names of the C functions begin with
 *   ROW, RESULT, VALUE  types of rows, margins and values; IS_VALUED, 1 if these differ
 *   FEATURES, OUTPUTS   columns of a row, results of a row; RESULTS, buffers that a function writes
 *   DEVICE              number of the GPU
 *   DATA, DATA_BYTES    file with the arrays of the model, and its size
 *   REFUSED(x)          whether the model takes no such value; REFUSES, 1 if there is any
 *   CALLS               "cpu.c" or "cuda.c", which runs the functions
 */
#define _GNU_SOURCE
#ifndef __wasm__
#include <dlfcn.h>
#endif
#include <dlpack/dlpack.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include "model.h"

#define JOINED(prefix, name) prefix##name
#define NAMED(prefix, name) JOINED(prefix, name)
#define PUBLIC(name) NAMED(PREFIX, name)

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#ifdef __wasm__
__asm__(
    ".section .rodata.tvm_forest_data,\"\",@\n.p2align 6\ntvm_forest_data:\n.incbin \"" DATA
    "\"\n.size tvm_forest_data, " TEXT(DATA_BYTES) "\n");
#else
__asm__(
    ".section .rodata\n.balign 64\ntvm_forest_data:\n.incbin \"" DATA
    "\"\n.previous\n");
#endif
extern const char tvm_forest_data[];

static _Thread_local char message[512];

static int fail(const char *text) {
  if (text != message) snprintf(message, sizeof message, "%s", text);
  return -1;
}

/* The number of the function for n rows; rows of its blocks, or 0; a call of it, 0 if all is well. */
static int which(int64_t n);
static int64_t block_of(int k);
static int call(int k, const ROW *rows, int64_t n, void *const *results);

/* Bytes of one value of the i-th result. */
static size_t size_of(int i) { return i == RESULTS - 1 && IS_VALUED ? sizeof(VALUE) : sizeof(RESULT); }

/* They give THERE, where rows may be besides the host, and PREDICT_THERE for rows that are there. */
#include CALLS

const char *PUBLIC(error)(void) { return message; }
int64_t PUBLIC(features)(void) { return FEATURES; }
int64_t PUBLIC(outputs)(void) { return OUTPUTS; }

int PUBLIC(predict)(const ROW *rows, int64_t n, RESULT *margin, VALUE *value) {
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
  int64_t block = block_of(k), left = block > 0 && n > block ? n % block : 0;
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

#ifndef __wasm__
/* -- the entry for apache-tvm-ffi: main(rows, margin[, value]) ---------------------------------- */

/* apache-tvm-ffi may have come into the process after this library. */
static int raise(const char *kind, const char *text) {
  void (*set)(const char *, const char *) = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr");
  if (set) set(kind, text);
  return fail(text);
}

static DLTensor *tensor_of(const TVMFFIAny *argument) {
  if (argument->type_index == kTVMFFIDLTensorPtr) return argument->v_ptr;
  if (argument->type_index == kTVMFFITensor)
    return (DLTensor *)((char *)argument->v_obj + sizeof(TVMFFIObject));
  return NULL;
}

static int is_wrong(const DLTensor *t, int place, int64_t n, int64_t width, int bits) {
  if ((int)t->device.device_type != place || (place == kDLCUDA && t->device.device_id != DEVICE)) return 1;
  if (t->ndim != 2 || t->shape[1] != width) return 1;
  if (n >= 0 && t->shape[0] != n) return 1;
  if (t->dtype.code != kDLFloat || t->dtype.bits != bits || t->dtype.lanes != 1) return 1;
  return t->strides && t->shape[0] > 1 && (t->strides[0] != width || (width > 1 && t->strides[1] != 1));
}

int __tvm_ffi_main(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  DLTensor *tensors[3] = {NULL, NULL, NULL};
  if (count < 2 || count > 3) return raise("TypeError", "expected main(rows, margin[, value])");
  for (int i = 0; i < count; ++i)
    if (!(tensors[i] = tensor_of(&arguments[i])))
      return raise("TypeError", "expected main(rows, margin[, value]), all of them tensors");
  int place = (int)tensors[0]->device.device_type == THERE ? THERE : kDLCPU;
  if (is_wrong(tensors[0], place, -1, FEATURES, 8 * sizeof(ROW)))
    return raise("ValueError", "rows: expected " ROWS_TEXT ", one row behind the other");
  int64_t n = tensors[0]->shape[0];
  if (is_wrong(tensors[1], place, n, OUTPUTS, 8 * sizeof(RESULT)))
    return raise("ValueError", "margin: expected " MARGIN_TEXT ", one row behind the other");
  if (tensors[2] && is_wrong(tensors[2], place, n, OUTPUTS, 8 * sizeof(VALUE)))
    return raise("ValueError", "value: expected " VALUE_TEXT ", one row behind the other");
  const ROW *rows = (const ROW *)((char *)tensors[0]->data + tensors[0]->byte_offset);
  RESULT *margin = (RESULT *)((char *)tensors[1]->data + tensors[1]->byte_offset);
  VALUE *value = tensors[2] ? (VALUE *)((char *)tensors[2]->data + tensors[2]->byte_offset) : NULL;
  memset(result, 0, sizeof *result);
  int failed = place == kDLCPU ? PUBLIC(predict)(rows, n, margin, value)
                               : PREDICT_THERE(rows, n, margin, value);
  return failed ? raise("RuntimeError", message) : 0;
}
#endif
