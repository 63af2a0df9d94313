/* What stands around the compiled functions of a model: C functions, the entry "main" for
 * apache-tvm-ffi, and the arrays of the model. Nothing else is to be seen from outside, so that a
 * program may hold any number of such libraries. "config.h" says what is in them:
 *
 *   PREFIX              what the names of the C functions begin with
 *   ROW, RESULT, VALUE  types of rows, margins and values; IS_VALUED, 1 if these differ
 *   TYPES               names of these three, as numpy has them
 *   FEATURES, OUTPUTS   columns of a row, results of a row; RESULTS, buffers that a function writes
 *   WIDE                columns of a row with membership columns
 *   EXPLAINS            whether there are contributions, see "contributions.c"
 *   DEVICE              number of the GPU
 *   REFUSED(x)          whether the model takes no such value; REFUSES, 1 if there is any
 *   CALLS               "cpu.c" or "cuda.c", which runs the functions
 *
 * and the files below say what else they read there. The command of the compiler defines
 *
 *   DATA                file with the arrays of the model
 *   ENTRY               1 for a shared library, which has the entry "main"
 *   WITHOUT_MINGW       for a .dll that no C library is linked into
 */
#define _GNU_SOURCE
#ifdef _WIN32
#include <windows.h>
#elif !defined __wasm__
#include <dlfcn.h>
#endif
#include <dlpack/dlpack.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include "config.h"

#define JOINED(prefix, name) prefix##name
#define NAMED(prefix, name) JOINED(prefix, name)
#define PUBLIC(name) NAMED(PREFIX, name)
#define TEXT_OF(number) #number
#define IN_TEXT(number) TEXT_OF(number)

#if defined _WIN32 && ENTRY
#define SEEN __declspec(dllexport)
#elif defined _WIN32
#define SEEN
#else
#define SEEN __attribute__((visibility("default")))
#endif

#ifdef __wasm__
__asm__(".section .rodata.tvm_forest_data,\"\",@\n.p2align 6\ntvm_forest_data:\n.incbin \"" DATA
        "\"\n.size tvm_forest_data, " IN_TEXT(DATA_BYTES) "\n");
#elif defined __APPLE__
__asm__(".section __TEXT,__const\n.p2align 6\n_tvm_forest_data:\n.incbin \"" DATA "\"\n.text\n");
#elif defined _WIN32
__asm__(".section .rdata,\"dr\"\n.p2align 6\ntvm_forest_data:\n.incbin \"" DATA "\"\n.text\n");
#else
__asm__(".section .rodata\n.balign 64\ntvm_forest_data:\n.incbin \"" DATA "\"\n.previous\n");
#endif
#ifdef _WIN32
extern const char tvm_forest_data[];
#else
extern const char tvm_forest_data[] __attribute__((visibility("hidden")));
#endif

#ifdef WITHOUT_MINGW
#include "windows.c"
#endif

static _Thread_local char message[512];

enum { WRONG = -1, LACKING = -2 };

static int fail(const char *text) {
  if (text != message) snprintf(message, sizeof message, "%s", text);
  return WRONG;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The most rows of which no size in bytes, with room to spare, is beyond what pointers can reach. */
#define RESULT_WIDTH (EXPLAINS ? OUTPUTS * (FEATURES + 1) : OUTPUTS)
#define WIDEST (WIDE > RESULT_WIDTH ? WIDE : RESULT_WIDTH)
#define MOST_ROWS ((int64_t)(PTRDIFF_MAX / 16 / (WIDEST > FEATURES ? WIDEST : FEATURES)))

static int check_count(int64_t n) {
  if (n < 0) return fail("n is negative");
  return n > MOST_ROWS ? fail("n is larger than any memory") : 0;
}

/* The number of the function for n rows; rows of its blocks, or 0; whether it reads membership
 * columns too; a call of it, 0 if all is well. */
static int which(int64_t n);
static int64_t block_of(int k);
static int is_wide(int k);
static int call(int k, const ROW *rows, int64_t n, void *const *results);

/* Bytes of one value of the i-th result. */
static size_t size_of(int i) { return i == RESULTS - 1 && IS_VALUED ? sizeof(VALUE) : sizeof(RESULT); }

static int64_t width_of(int wide) { return wide ? WIDE : FEATURES; }

#include "processor.c"
#include "rows.c"

/* They give THERE, where rows may be besides the host, PREDICT_THERE for rows that are there, and
 * SHARES, whether threads may share out the rows of a batch. */
#include CALLS

/* Rows, and where what is computed of them goes; sums and value may be NULL. If contributions are
 * not, they are all that is computed. */
typedef struct { const ROW *rows; int64_t n; RESULT *sums, *margin; VALUE *value; double *contributions; } part;

#define BEHIND(array, count) ((array) ? (array) + (count) : NULL)

static part slice(part p, int64_t first, int64_t n) {
  int64_t results = first * OUTPUTS;
  return (part){p.rows + first * FEATURES, n, BEHIND(p.sums, results), BEHIND(p.margin, results),
                BEHIND(p.value, results), BEHIND(p.contributions, results * (FEATURES + 1))};
}

#if EXPLAINS
#include "contributions.c"
#else
enum { EXPLAINED_WIDE = 0 };
static int explain(const ROW *ready, part p) { return (void)ready, (void)p, WRONG; }
#endif

static int call_for(int k, const ROW *ready, part p) {
  if (p.contributions) return explain(ready, p);
  void *results[] = {p.sums ? p.sums : p.margin, p.sums ? (void *)p.margin : p.value, p.value};
  return call(k, ready, p.n, results);
}

/* Predict by one function, of rows that are made ready a few at a time if they have to be. */
static int run_by(int k, part p) {
  int wide = p.contributions ? EXPLAINED_WIDE : is_wide(k);
  if (!is_changed(wide)) return call_for(k, p.rows, p);
  int64_t block = block_of(k), step = 512;
  if (block > 0) step = (step + block - 1) / block * block;
  ROW *ready = malloc(least(step, p.n) * width_of(wide) * sizeof *ready);
  if (!ready) return fail("out of memory");
  int failed = 0;
  for (int64_t first = 0; first < p.n && !failed; first += step) {
    part here = slice(p, first, least(step, p.n - first));
    make_ready(wide, here.rows, here.n, ready);
    failed = call_for(k, ready, here);
  }
  free(ready);
  return failed;
}

/* Predict on this thread; what a batch has beyond whole blocks goes to another function. */
static int run(part p) {
  int k = which(p.n);
  int64_t block = block_of(k), rest = block > 0 && p.n > block && !p.contributions ? p.n % block : 0;
  if (run_by(k, slice(p, 0, p.n - rest))) return WRONG;
  return rest ? run_by(which(rest), slice(p, p.n - rest, rest)) : 0;
}

#include "threads.c"

static int check_call(const void *rows, int64_t n, const void *result, int jobs) {
  if (check_count(n)) return WRONG;
  if (jobs < 1 && jobs != -1) return fail("n_jobs is neither positive nor -1");
  if (n && (!rows || !result)) return fail("rows or margin is a null pointer");
  return PUBLIC(check)();
}

static int check_rows(const ROW *rows, int64_t n) {
  (void)rows; /* of which most models refuse nothing */
  for (int64_t i = 0; REFUSES && i < n * FEATURES; ++i)
    if (REFUSED(rows[i])) return fail("rows hold a value that the model refuses: " WHAT_IS_REFUSED);
  return 0;
}

SEEN const char *PUBLIC(error)(void) { return message; }
SEEN int64_t PUBLIC(features)(void) { return FEATURES; }
SEEN int64_t PUBLIC(outputs)(void) { return OUTPUTS; }
SEEN const char *PUBLIC(types)(void) { return TYPES; }

SEEN int PUBLIC(predict)(const ROW *rows, int64_t n, RESULT *margin, VALUE *value, int n_jobs) {
  int code = check_call(rows, n, margin, n_jobs);
  if (code || n == 0) return code;
  if (check_rows(rows, n)) return WRONG;
  part whole = {rows, n, NULL, margin, IS_VALUED ? value : NULL, NULL};
  if (RESULTS - IS_VALUED > 1) whole.sums = malloc(n * OUTPUTS * sizeof *whole.sums);
  if (IS_VALUED && !value) whole.value = malloc(n * OUTPUTS * sizeof *value);
  if ((RESULTS - IS_VALUED > 1 && !whole.sums) || (IS_VALUED && !whole.value))
    code = fail("out of memory");
  else
    code = share_out(whole, n_jobs);
  if (!IS_VALUED && value && !code)
    for (int64_t i = 0; i < n * OUTPUTS; ++i) value[i] = (VALUE)margin[i];
  if (whole.value != value) free(whole.value);
  free(whole.sums);
  return code;
}

#if EXPLAINS
SEEN int PUBLIC(predict_contributions)(const ROW *rows, int64_t n, double *values, int n_jobs) {
  if (n > 0 && !values) return fail("values is a null pointer");
  int code = check_call(rows, n, values, n_jobs);
  if (code || n == 0) return code;
  if (check_rows(rows, n)) return WRONG;
  return share_out((part){.rows = rows, .n = n, .contributions = values}, n_jobs);
}
#endif

#include "names.c"

#if ENTRY && !defined __wasm__
/* -- the entries for apache-tvm-ffi: main(rows, margin[, value]), contributions(rows, values) ----- */

/* apache-tvm-ffi may have come into the process after this library. */
static int raise_error(const char *kind, const char *text) {
  void (*set)(const char *, const char *) = NULL;
#ifdef _WIN32
  HMODULE library = GetModuleHandleA("tvm_ffi.dll");
  if (library) *(FARPROC *)&set = GetProcAddress(library, "TVMFFIErrorSetRaisedFromCStr");
#else
  *(void **)&set = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr");
#endif
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

SEEN int __tvm_ffi_main(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  DLTensor *tensors[3] = {NULL, NULL, NULL};
  (void)self;
  if (count < 2 || count > 3) return raise_error("TypeError", "expected main(rows, margin[, value])");
  for (int i = 0; i < count; ++i)
    if (!(tensors[i] = tensor_of(&arguments[i])))
      return raise_error("TypeError", "expected main(rows, margin[, value]), all of them tensors");
  int place = (int)tensors[0]->device.device_type == THERE ? (int)THERE : (int)kDLCPU;
  if (is_wrong(tensors[0], place, -1, FEATURES, 8 * sizeof(ROW)))
    return raise_error("ValueError", "rows: expected " ROWS_TEXT ", one row behind the other");
  int64_t n = tensors[0]->shape[0];
  if (is_wrong(tensors[1], place, n, OUTPUTS, 8 * sizeof(RESULT)))
    return raise_error("ValueError", "margin: expected " MARGIN_TEXT ", one row behind the other");
  if (tensors[2] && is_wrong(tensors[2], place, n, OUTPUTS, 8 * sizeof(VALUE)))
    return raise_error("ValueError", "value: expected " VALUE_TEXT ", one row behind the other");
  const ROW *rows = (const ROW *)((char *)tensors[0]->data + tensors[0]->byte_offset);
  RESULT *margin = (RESULT *)((char *)tensors[1]->data + tensors[1]->byte_offset);
  VALUE *value = tensors[2] ? (VALUE *)((char *)tensors[2]->data + tensors[2]->byte_offset) : NULL;
  memset(result, 0, sizeof *result);
  int failed = place == kDLCPU ? PUBLIC(predict)(rows, n, margin, value, 1)
                               : PREDICT_THERE(rows, n, margin, value);
  return failed ? raise_error("RuntimeError", message) : 0;
}

#if EXPLAINS
SEEN int __tvm_ffi_contributions(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  const DLTensor *rows = count == 2 ? tensor_of(&arguments[0]) : NULL;
  const DLTensor *values = count == 2 ? tensor_of(&arguments[1]) : NULL;
  (void)self;
  if (!rows || !values) return raise_error("TypeError", "expected contributions(rows, values), both tensors");
  if (is_wrong(rows, kDLCPU, -1, FEATURES, 8 * sizeof(ROW)))
    return raise_error("ValueError", "rows: expected " ROWS_TEXT ", one row behind the other");
  if (is_wrong(values, kDLCPU, rows->shape[0], OUTPUTS * (FEATURES + 1), 64))
    return raise_error("ValueError", "values: expected " CONTRIBUTIONS_TEXT ", one row behind the other");
  memset(result, 0, sizeof *result);
  int failed = PUBLIC(predict_contributions)((const ROW *)((char *)rows->data + rows->byte_offset), rows->shape[0],
                                             (double *)((char *)values->data + values->byte_offset), 1);
  return failed ? raise_error("RuntimeError", message) : 0;
}
#endif
#endif
