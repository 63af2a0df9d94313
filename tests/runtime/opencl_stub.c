// An OpenCL of two platforms with three devices, whose facts the tests set. It runs no kernel, and
// counts what is made of it and given back.

#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;

static u64 platforms[2], devices[3] = {2, 4, 4};  // what they hold are the types: a CPU, two GPUs
static int count_of_platforms = 2, build = 0, alive = 0;
static struct { u32 number; u64 value; } set[16];
static int count_of_set = 0;
static const char *version = "OpenCL 1.2 of a stub", *extensions = "cl_khr_fp64";

void stub_reset(void) {
  count_of_platforms = 2;
  count_of_set = build = 0;
  version = "OpenCL 1.2 of a stub";
}
void stub_platforms(int count) { count_of_platforms = count; }
void stub_version(const char* text) { version = text; }
void stub_fail_to_build(int code) { build = code; }
int stub_alive(void) { return alive; }
void stub_set(u32 number, u64 value) {
  set[count_of_set].number = number;
  set[count_of_set++].value = value;
}

static int tell(const void* data, size_t size, size_t room, void* to, size_t* told) {
  if (told) *told = size;
  if (to) memcpy(to, data, size < room ? size : room);
  return 0;
}

int clGetPlatformIDs(u32 room, void** to, u32* told) {
  if (!count_of_platforms) return -1001;
  if (told) *told = count_of_platforms;
  for (u32 i = 0; to && i < room; ++i) to[i] = &platforms[i];
  return 0;
}

int clGetDeviceIDs(void* platform, u64 type, u32 room, void** to, u32* told) {
  u32 first = platform == &platforms[1], count = first ? 2 : 1;
  if (told) *told = count;
  for (u32 i = 0; to && i < room && i < count; ++i) to[i] = &devices[first + i];
  return 0;
}

int clGetDeviceInfo(u64* device, u32 number, size_t room, void* to, size_t* told) {
  static const char* titles[] = {"a CPU", "a GPU", "another GPU"};
  if (number == 0x102B) {
    const char* title = titles[device - devices];
    return tell(title, strlen(title) + 1, room, to, told);
  }
  if (number == 0x102F) return tell(version, strlen(version) + 1, room, to, told);
  if (number == 0x1030) return tell(extensions, strlen(extensions) + 1, room, to, told);
  u64 value = 1 << 20;
  if (number == 0x1000) value = *device;
  if (number == 0x101B) value = 0xFF;
  for (int i = 0; i < count_of_set; ++i)
    if (set[i].number == number) value = set[i].value;
  return tell(&value, sizeof(value), room, to, told);
}

static u64 made[1024];
static int number_made = 0;
static void* make(int* code) {
  *code = 0;
  ++alive;
  return &made[number_made++ % 1024];
}

void* clCreateContext(void* a, u32 b, void* c, void* d, void* e, int* code) { return make(code); }
void* clCreateCommandQueue(void* a, void* b, u64 c, int* code) { return make(code); }
void* clCreateProgramWithSource(void* a, u32 b, void* c, void* d, int* code) { return make(code); }
void* clCreateKernel(void* a, void* b, int* code) { return make(code); }
void* clCreateBuffer(void* a, u64 b, size_t size, void* c, int* code) {
  void* buffer = make(code);
  if (size > (size_t)1 << 20) *code = -61, buffer = 0, --alive;
  return buffer;
}
void* clCreateSubBuffer(void* a, u64 b, u32 c, size_t* region, int* code) {
  void* part = make(code);
  if (region[0] % 4096) *code = -13, part = 0, --alive;
  return part;
}

int clReleaseMemObject(void* x) { return --alive, 0; }
int clReleaseProgram(void* x) { return --alive, 0; }
int clReleaseKernel(void* x) { return --alive, 0; }
int clBuildProgram(void* a, u32 b, void* c, void* d, void* e, void* f) { return build; }
int clGetProgramBuildInfo(void* a, void* b, u32 c, size_t room, void* to, size_t* told) {
  return tell("line 3: no such word\n", 22, room, to, told);
}
int clGetKernelWorkGroupInfo(void* a, void* b, u32 number, size_t room, void* to, size_t* told) {
  u64 value = number == 0x11B0 ? 128 : 5000;
  return tell(&value, sizeof(value), room, to, told);
}
int clSetKernelArg(void* a, u32 b, size_t c, void* d) { return 0; }
int clEnqueueNDRangeKernel(void* a, void* b, u32 c, void* d, void* e, void* f, u32 g, void* h,
                           void* i) { return 0; }
int clEnqueueReadBuffer(void* a, void* b, u32 c, size_t d, size_t e, void* f, u32 g, void* h,
                        void* i) { return 0; }
int clEnqueueWriteBuffer(void* a, void* b, u32 c, size_t d, size_t e, void* f, u32 g, void* h,
                         void* i) { return 0; }
int clFlush(void* a) { return 0; }
int clFinish(void* a) { return 0; }
