/* Functions that TVM compiled for a CPU. "model.h" lists them:
 *
 *   FUNCTIONS(F)  F(smallest batch, function, rows of a block or 0, AT(place of an array) ...)
 */

enum { THERE = kDLCPU };
#define PREDICT_THERE PUBLIC(predict)

/* -- what TVM's code calls, here and nowhere else: TVM's own definitions of the pointers are weak -- */

typedef int Task(int, void *, void *);
struct tasks { void *barrier; int32_t count; };

static void *allocate(int kind, int device, uint64_t size, int code, int bits) {
  void *made = aligned_alloc(64, (size + 63) & ~(uint64_t)63);
  if (!made) fail("out of memory");
  return made;
}

static int release(int kind, int device, void *data) {
  free(data);
  return 0;
}

static int launch(Task *task, void *data, int count) {
  struct tasks all = {NULL, 1};
  return task(0, &all, data);
}

void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = release;
int (*__TVMBackendParallelLaunch)(Task *, void *, int) = launch;

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  message[0] = 0;
  for (int i = 0; i < count; ++i)
    if (parts[i]) strncat(message, parts[i], sizeof message - strlen(message) - 1);
}

/* -- the model --------------------------------------------------------------------------------- */

/* An entry of a table of addresses has 64 bits on every machine, the lower ones first. */
typedef struct { _Alignas(8) const char *at; char above[8 - sizeof(char *)]; } address;
#define AT(place) {.at = tvm_forest_data + place}

typedef int Function(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);
#define DECLARE(smallest, function, block, ...) Function function;
FUNCTIONS(DECLARE)
#define FUNCTION(smallest, function, block, ...) {smallest, block, function, {__VA_ARGS__}},
static const struct { int64_t smallest, block; Function *call; address model[64]; } functions[] = {
    FUNCTIONS(FUNCTION)};
enum { COUNT = sizeof functions / sizeof *functions };

static int64_t block_of(int k) { return functions[k].block; }

static int which(int64_t n) {
  int k = COUNT - 1;
  while (k && n < functions[k].smallest) --k;
  return k;
}

static int call(int k, const ROW *rows, int64_t n, void *const *results) {
  DLTensor tensors[RESULTS + 1];
  TVMFFIAny arguments[RESULTS + 2], nothing = {0};
  int64_t row_shape[2] = {n, FEATURES}, result_shape[2] = {n, OUTPUTS};
  tensors[0] = (DLTensor){(void *)rows, {kDLCPU, 0}, 2, ROW_TYPE, row_shape, NULL, 0};
  for (int i = 0; i < RESULTS; ++i) {
    DLDataType type = {kDLFloat, (uint8_t)(8 * size_of(i)), 1};
    tensors[i + 1] = (DLTensor){results[i], {kDLCPU, 0}, 2, type, result_shape, NULL, 0};
  }
  memset(arguments, 0, sizeof arguments);
  for (int i = 0; i < RESULTS + 2; ++i) {
    arguments[i].type_index = i == 1 ? kTVMFFIOpaquePtr : kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = i == 1 ? (void *)functions[k].model : &tensors[i ? i - 1 : 0];
  }
  return functions[k].call(NULL, arguments, RESULTS + 2, &nothing);
}
