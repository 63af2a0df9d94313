/* A driver of CUDA that does nothing, at once: what is left of a call is the work of the host.
 * Memory of the GPU is memory of the host, which copies move; kernels do not run. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *current;

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int number) { return *device = number, 0; }
int cuDeviceGetName(char *name, int size, int device) { return strcpy(name, "stub"), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = (size_t)80 << 30, 0; }
int cuDeviceGetAttribute(int *value, int what, int device) {
  *value = what == 1 ? 1024 : what == 8 ? 49152 : what == 97 ? 232448 : what == 16 ? 132 : what == 39 ? 2048 : what == 75 ? 9 : what == 81 ? 233472 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &current, 0; }
int cuCtxGetCurrent(void **context) { return *context = current, 0; }
int cuCtxPushCurrent_v2(void *context) { return current = context, 0; }
int cuCtxPopCurrent_v2(void **context) { return *context = current, current = NULL, 0; }
int cuGetErrorString(int code, const char **text) { return *text = "an error", 0; }
int cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *o, void **v) { return *module = &current, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return *function = &current, 0; }
int cuFuncSetAttribute(void *function, int what, int value) { return 0; }
int cuFuncGetAttribute(int *value, int what, void *function) { return *value = what ? 0 : 1024, 0; }
int cuMemAlloc_v2(uint64_t *at, size_t size) { return *at = (uint64_t)calloc(1, size), *at ? 0 : 2; }
int cuMemFree_v2(uint64_t at) { return free((void *)at), 0; }
int cuMemHostAlloc(void **at, size_t size, unsigned flags) { return *at = calloc(1, size), *at ? 0 : 2; }
int cuMemFreeHost(void *at) { return free(at), 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) { return memcpy((void *)to, from, size), 0; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) { return memcpy(to, (void *)from, size), 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { return *stream = malloc(1), 0; }
int cuStreamDestroy_v2(void *stream) { return free(stream), 0; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuStreamIsCapturing(void *stream, int *status) { return *status = 0, 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cuEventCreate(void **event, unsigned flags) { return *event = &current, 0; }
int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventQuery(void *event) { return 0; }
int cuEventSynchronize(void *event) { return 0; }
int cuEventElapsedTime(float *milliseconds, void *first, void *last) { return *milliseconds = 0.001f, 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) { return 0; }
