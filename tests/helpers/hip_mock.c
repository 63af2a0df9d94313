/* A stand-in for the HIP runtime, in memory of the host.

   It knows its own pointers, notes every call in a log, and can be told to let a call fail. Kernels
   are linked to it as functions that do the work of one thread, made of the LLVM IR of the code
   object (hip_on_host.py): a launch runs the blocks one after the other, and the threads of a block by
   turns from barrier to barrier, each on a stack of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { OK, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { PIECES = 4096, GUARD = 64, THREADS = 1024, STACK = 1 << 16, LOG = 1 << 20 };

static struct { char *start; size_t size; } pieces[PIECES];
static char log_text[LOG], failing[64] = "", gpu[32] = "gfx942";
static int failing_code, backwards, wave = 64, processors = 304, current_device, version = 60200000, devices = 1;

const char *mock_log(void) { return log_text; }
void mock_reset(void) { log_text[0] = failing[0] = 0; version = 60200000; devices = 1; }
void mock_fail(const char *call, int code) { snprintf(failing, 64, "%s", call); failing_code = code; }
void mock_gpu(const char *name, int lanes) { snprintf(gpu, 32, "%s", name); wave = lanes; }
void mock_processors(int count) { processors = count; }
void mock_about(int v, int count) { version = v; devices = count; }
void mock_order(int last_first) { backwards = last_first; }
int mock_pieces(void) {
  int count = 0;
  for (int i = 0; i < PIECES; i++) count += pieces[i].start != NULL;
  return count;
}

static int called(const char *name, const char *format, ...) {
  size_t used = strlen(log_text);
  va_list values;
  va_start(values, format);
  used += snprintf(log_text + used, LOG - used, "%s", name);
  if (*format) used += snprintf(log_text + used, LOG - used, " ");
  used += vsnprintf(log_text + used, LOG - used, format, values);
  snprintf(log_text + used, LOG - used, "\n");
  va_end(values);
  return strcmp(name, failing) == 0 ? failing_code : OK;
}
#define CALLED(...) do { int code = called(__func__, __VA_ARGS__); if (code) return code; } while (0)

/* -- the GPU, memory, streams ------------------------------------------------------------------ */

int hipInit(unsigned flags) { CALLED("%u", flags); return OK; }
int hipRuntimeGetVersion(int *v) { CALLED(""); *v = version; return OK; }
int hipGetDeviceCount(int *count) { CALLED(""); *count = devices; return OK; }
int hipGetDevice(int *device) { *device = current_device; return OK; }
int hipSetDevice(int device) { current_device = device; return OK; }
const char *hipGetErrorString(int code) { return code == NO_MEMORY ? "out of memory" : "an error"; }
int hipDeviceGetAttribute(int *value, int which, int device) {
  CALLED("%d %d", which, device);
  *value = which == 56 ? 1024 : which == 74 ? 65536 : which == 63 ? processors : -1;
  return OK;
}
int hipDeviceGetName(char *name, int size, int device) {
  CALLED("%d", device);
  snprintf(name, size, "AMD Instinct");
  return OK;
}
int hipDeviceTotalMem(size_t *bytes, int device) { CALLED("%d", device); *bytes = 1ul << 37; return OK; }
int hipGetDevicePropertiesR0600(char *about, int device) {
  CALLED("%d", device);
  memset(about, 0, 1472);
  strcpy(about, "AMD Instinct");
  snprintf(about + 1160, 256, "%s:sramecc+:xnack-", gpu);
  return OK;
}

static size_t room(const char *p) { /* bytes from here to the end of the piece, 0 if there is none */
  for (int i = 0; i < PIECES; i++) {
    char *start = pieces[i].start;
    if (start && p >= start && p < start + pieces[i].size) return start + pieces[i].size - p;
  }
  return 0;
}
int hipMalloc(void **p, size_t size) {
  CALLED("%zu", size);
  int i = 0;
  while (i < PIECES && pieces[i].start) i++;
  if (i == PIECES || !(pieces[i].start = aligned_alloc(256, (size + GUARD + 255) / 256 * 256)))
    return NO_MEMORY;
  memset(pieces[i].start, 0xA5, size + GUARD);
  pieces[i].size = size;
  *p = pieces[i].start;
  return OK;
}
static int whole(void) { /* whether nobody wrote behind a piece */
  for (int i = 0; i < PIECES; i++)
    for (int k = 0; pieces[i].start && k < GUARD; k++)
      if ((unsigned char)pieces[i].start[pieces[i].size + k] != 0xA5) return 0;
  return 1;
}
int hipFree(void *p) {
  CALLED("");
  for (int i = 0; i < PIECES; i++)
    if (p && pieces[i].start == p) { free(p); pieces[i].start = NULL; return OK; }
  return INVALID;
}
int hipMemcpyHtoDAsync(char *to, const void *from, size_t size, void *stream) {
  CALLED("%zu stream %p", size, stream);
  if (room(to) < size) return INVALID;
  memcpy(to, from, size);
  return OK;
}
int hipMemcpyDtoHAsync(void *to, const char *from, size_t size, void *stream) {
  CALLED("%zu stream %p", size, stream);
  if (room(from) < size) return INVALID;
  memcpy(to, from, size);
  return OK;
}
int hipHostMalloc(void **p, size_t size, unsigned flags) {
  CALLED("%zu %u", size, flags);
  return (*p = malloc(size)) ? OK : NO_MEMORY;
}
int hipHostFree(void *p) { CALLED(""); free(p); return OK; }
int hipStreamCreateWithFlags(void **stream, unsigned flags) {
  static long count;
  CALLED("%u", flags);
  *stream = (void *)(0x100 + count++);
  return OK;
}
int hipStreamIsCapturing(void *stream, int *status) { *status = 0; return OK; }
int hipStreamSynchronize(void *stream) { CALLED("stream %p", stream); return OK; }
int hipEventCreateWithFlags(void **event, unsigned flags) { CALLED("%u", flags); *event = &gpu; return OK; }
int hipEventRecord(void *event, void *stream) { CALLED("stream %p", stream); return event == &gpu ? OK : INVALID; }
int hipStreamWaitEvent(void *stream, void *event, unsigned flags) { CALLED("stream %p %u", stream, flags); return event == &gpu ? OK : INVALID; }
int hipEventSynchronize(void *event) { CALLED(""); return event == &gpu ? OK : INVALID; }
int hipEventElapsedTime(float *milliseconds, void *first, void *last) {
  CALLED("");
  *milliseconds = 1.5f;
  return first == &gpu && last == &gpu ? OK : INVALID;
}
int hipEventDestroy(void *event) { CALLED(""); return event == &gpu ? OK : INVALID; }

/* -- kernels ----------------------------------------------------------------------------------- */

static struct { ucontext_t context; char stack[STACK]; int done, waits; } *fibers;
static ucontext_t scheduler;
static unsigned block_at[3], thread_at[3], threads[3], running;
static uint32_t slots[THREADS];
static void (*kernel)(void **);
static void **given;

int tvmf_group(int axis) { return block_at[axis]; }
int tvmf_item(int axis) { return thread_at[axis]; }
int tvmf_lanes_below(int mask, int base) { int lane = running % wave; return base + (lane < 32 ? lane : 32); }
int tvmf_lanes_above(int mask, int base) { int lane = running % wave; return base + (lane < 32 ? 0 : lane - 32); }
static void place(unsigned number) {
  running = number;
  thread_at[0] = number % threads[0];
  thread_at[1] = number / threads[0] % threads[1];
  thread_at[2] = number / threads[0] / threads[1];
}
static void let_others_run(void) { /* all that go on do so until they call this or wait */
  unsigned me = running;
  swapcontext(&fibers[me].context, &scheduler);
}
void tvmf_meet(void) {
  fibers[running].waits = 1;
  let_others_run();
}
int tvmf_permute(int byte, int value) {
  unsigned first = running - running % wave;
  slots[running] = value;
  tvmf_meet();
  value = slots[first + byte / 4 % wave];
  tvmf_meet();
  return value;
}
int64_t tvmf_vote(int outcome) { /* bits of lanes that vote elsewhere mean nothing */
  unsigned first = running - running % wave;
  uint64_t bits = 0;
  slots[running] = outcome & 1;
  let_others_run();
  for (unsigned k = 0; k < wave && first + k < THREADS; k++) bits |= (uint64_t)(slots[first + k] & 1) << k;
  let_others_run();
  return bits;
}
int tvmf_vote_of_32(int outcome) { return tvmf_vote(outcome); }
static void thread_main(void) {
  kernel(given);
  fibers[running].done = 1;
  swapcontext(&fibers[running].context, &scheduler);
}
static int run_block(unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    getcontext(&fibers[i].context);
    fibers[i].context.uc_stack.ss_sp = fibers[i].stack;
    fibers[i].context.uc_stack.ss_size = STACK;
    fibers[i].done = fibers[i].waits = 0;
    makecontext(&fibers[i].context, thread_main, 0);
  }
  for (unsigned done = 0, waiting = 0; done < count;) {
    if (done + waiting == count) { /* all are at a barrier, or it is missed by those that are done */
      if (done) return LAUNCH_FAILED;
      for (unsigned i = 0; i < count; i++) fibers[i].waits = 0;
    }
    done = waiting = 0;
    for (unsigned i = 0; i < count; i++) {
      place(backwards ? count - 1 - i : i);
      if (!fibers[running].done && !fibers[running].waits) swapcontext(&scheduler, &fibers[running].context);
      done += fibers[running].done, waiting += fibers[running].waits;
    }
  }
  return OK;
}

int hipModuleLoadData(void **module, const char *image) {
  CALLED("%s", memcmp(image, "\177ELF", 4) ? "not ELF" : "ELF");
  *module = &gpu;
  return OK;
}
int hipModuleUnload(void *module) {
  CALLED("");
  return module == &gpu ? OK : NOT_FOUND;
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
  CALLED("%s", name);
  char host[256];
  snprintf(host, 256, "%s_on_host", name);
  Dl_info here;
  dladdr((void *)hipInit, &here);
  *function = dlsym(dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD), host);
  return module == &gpu && *function ? OK : NOT_FOUND;
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments,
                          void **extra) {
  Dl_info about;
  dladdr(function, &about);
  CALLED("%s grid %u %u %u block %u %u %u shared %u stream %p", about.dli_sname, gx, gy, gz, bx, by,
         bz, shared, stream);
  if (!gx || !gy || !gz || bx * by * bz > THREADS || extra) return INVALID;
  if (!fibers) fibers = malloc(THREADS * sizeof *fibers);
  kernel = function, given = arguments;
  threads[0] = bx, threads[1] = by, threads[2] = bz;
  for (block_at[2] = 0; block_at[2] < gz; block_at[2]++)
    for (block_at[1] = 0; block_at[1] < gy; block_at[1]++)
      for (block_at[0] = 0; block_at[0] < gx; block_at[0]++)
        if (run_block(bx * by * bz)) return LAUNCH_FAILED;
  return whole() ? OK : LAUNCH_FAILED;
}
