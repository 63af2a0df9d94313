/* Functions that TVM compiled for a CPU. "config.h" lists them:
 *
 *   FUNCTIONS(F)  F(smallest batch, name, rows of a block or 0, whether it reads membership columns,
 *                   AT(place of an array) ...)
 *   KEEPS_ORDER   whether all of them add up in one order
 */

enum { THERE = kDLCPU, SHARES = KEEPS_ORDER };
#define PREDICT_THERE(rows, n, margin, value) PUBLIC(predict)(rows, n, margin, value, 1)

/* -- what TVM's code calls, under names of this library ----------------------------------------- */

#define COMPILED(name) NAMED(PREFIX, name##_compiled)
#ifdef _WIN32
#define HIDDEN
#else
#define HIDDEN __attribute__((visibility("hidden")))
#endif

static void *allocate(int kind, int device, uint64_t size, int code, int bits) {
  size_t whole = (size + 63) & ~(uint64_t)63;
  (void)kind, (void)device, (void)code, (void)bits;
#ifdef _WIN32
  void *made = _aligned_malloc(whole, 64);
#else
  void *made = aligned_alloc(64, whole);
#endif
  if (!made) fail("out of memory");
  return made;
}

static int release(int kind, int device, void *data) {
  (void)kind, (void)device;
#ifdef _WIN32
  _aligned_free(data);
#else
  free(data);
#endif
  return 0;
}

HIDDEN void *(*COMPILED(AllocWorkspace))(int, int, uint64_t, int, int) = allocate;
HIDDEN int (*COMPILED(FreeWorkspace))(int, int, void *) = release;
HIDDEN void *COMPILED(ParallelLaunch) = NULL; /* no function that has such loops is called */
HIDDEN void *COMPILED(ParallelBarrier) = NULL; /* named by code that LLVM has not optimised */

HIDDEN void COMPILED(raise)(const char *kind, const char **parts, int32_t count);
void COMPILED(raise)(const char *kind, const char **parts, int32_t count) {
  (void)kind;
  message[0] = 0;
  for (int i = 0; i < count; ++i)
    if (parts[i]) strncat(message, parts[i], sizeof message - strlen(message) - 1);
}

/* -- the model --------------------------------------------------------------------------------- */

/* An entry of a table of addresses has 64 bits on every machine, the lower ones first. */
typedef struct { _Alignas(8) const char *at; char above[8 - sizeof(char *)]; } address;
#define AT(place) {.at = tvm_forest_data + place}

typedef int Function(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);
#define DECLARE(smallest, name, block, wide, ...) HIDDEN Function COMPILED(name);
FUNCTIONS(DECLARE)
#define FUNCTION(smallest, name, block, wide, ...) {smallest, block, wide, COMPILED(name), {__VA_ARGS__}},
static const struct { int64_t smallest, block; int is_wide; Function *call; address model[64]; } functions[] = {
    FUNCTIONS(FUNCTION)};
enum { COUNT = sizeof functions / sizeof *functions };

static int64_t block_of(int k) { return functions[k].block; }
static int is_wide(int k) { return functions[k].is_wide; }

static int which(int64_t n) {
  int k = COUNT - 1;
  while (k && n < functions[k].smallest) --k;
  return k;
}

/* Call a compiled function for rows that are ready; it writes so many results. */
static int invoke(Function *function, const address *model, const ROW *rows, int64_t n, int64_t width,
                  DLTensor *results, int count) {
  TVMFFIAny arguments[RESULTS + 2], nothing = {0};
  int64_t shape[2] = {n, width};
  DLTensor given = {(void *)rows, {kDLCPU, 0}, 2, ROW_TYPE, shape, NULL, 0};
  memset(arguments, 0, sizeof arguments);
  for (int i = 0; i < count + 2; ++i) {
    arguments[i].type_index = i == 1 ? kTVMFFIOpaquePtr : kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = i == 0 ? &given : i == 1 ? (void *)model : (void *)&results[i - 2];
  }
  return function(NULL, arguments, count + 2, &nothing);
}

static int call(int k, const ROW *rows, int64_t n, void *const *results) {
  DLTensor tensors[RESULTS];
  int64_t shape[2] = {n, OUTPUTS};
  for (int i = 0; i < RESULTS; ++i) {
    DLDataType type = {kDLFloat, (uint8_t)(8 * size_of(i)), 1};
    tensors[i] = (DLTensor){results[i], {kDLCPU, 0}, 2, type, shape, NULL, 0};
  }
  return invoke(functions[k].call, functions[k].model, rows, n, width_of(functions[k].is_wide), tensors, RESULTS);
}
