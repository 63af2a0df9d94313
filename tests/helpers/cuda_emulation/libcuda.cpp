// A driver of CUDA without a GPU: what tvm_forest.kernels.cuda calls, over kernels made for the CPU.
//
// Memory of the device is memory of the host between guards. Streams do their work at once; with the
// setting "late" they do it as late as CUDA allows: when somebody waits for it, or when work of
// another stream does. Copies from and to memory of cuMemHostAlloc read and write it then; memory that
// other calls of the host give is copied at once, and read behind the work of the stream. An image is
// the text "EMULATED <architecture> <path of a shared library>". Tests set what the device is and which
// call fails, and read how often each was called.
//
// A thread of a block is a fiber. Fibers run one at a time, from one meeting (barrier or shuffle) to
// the next, in an order that a seed shuffles each time; blocks run one after the other. Shared memory
// is filled with rubbish before each block.
#include <sys/mman.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <ucontext.h>
#include <vector>

namespace emulation {

struct Size { unsigned x, y, z; };
Size thread_at, block_at, block_size, grid_size;
unsigned lane;

namespace {

enum State { READY, AT_BARRIER, IN_WARP, DONE };

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  unsigned number, mask;
  State state;
};

std::vector<Fiber*> fibers;
Fiber* now;
ucontext_t scheduler;
void (*call)(void**);
void** arguments;
unsigned live;  // fibers of the block
char slots[1024][8];

void pause(State state) {
  now->state = state;
  swapcontext(&now->context, &scheduler);
}

void begin() {
  call(arguments);
  now->state = DONE;
}

void start(unsigned number) {
  Fiber& f = *fibers[number];
  f.number = number;
  f.state = READY;
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.data();
  f.context.uc_stack.ss_size = f.stack.size();
  f.context.uc_link = &scheduler;
  makecontext(&f.context, begin, 0);
}

void resume(Fiber& f) {
  now = &f;
  lane = f.number % 32;
  thread_at = {f.number % block_size.x, f.number / block_size.x % block_size.y,
               f.number / block_size.x / block_size.y};
  swapcontext(&scheduler, &f.context);
}

// Let those of a warp go on who have met all that they wait for; false if nobody has.
bool release_warp(unsigned first) {
  unsigned last = std::min(first + 32, live), waiting = 0, wanted = 0;
  for (unsigned i = first; i < last; ++i) {
    unsigned bit = 1u << (i - first);
    if (fibers[i]->state == IN_WARP) waiting |= bit, wanted |= fibers[i]->mask;
  }
  for (unsigned i = first; i < first + 32; ++i)
    if (i >= last || fibers[i]->state == DONE) wanted &= ~(1u << (i - first));
  if (!waiting || (wanted & ~waiting)) return false;
  for (unsigned i = first; i < last; ++i)
    if (fibers[i]->state == IN_WARP) fibers[i]->state = READY;
  return true;
}

bool release() {
  bool any = false, in_warps = false;
  for (unsigned first = 0; first < live; first += 32) any |= release_warp(first);
  for (unsigned i = 0; i < live; ++i) in_warps |= fibers[i]->state == IN_WARP;
  if (any || in_warps) return any;
  for (unsigned i = 0; i < live; ++i)
    if (fibers[i]->state == AT_BARRIER) fibers[i]->state = READY, any = true;
  return any;
}

bool run_block(std::mt19937& random) {
  for (unsigned i = 0; i < live; ++i) start(i);
  for (;;) {
    std::vector<Fiber*> ready;
    bool done = true;
    for (unsigned i = 0; i < live; ++i) {
      if (fibers[i]->state == READY) ready.push_back(fibers[i]);
      done &= fibers[i]->state == DONE;
    }
    if (done) return true;
    if (ready.empty() && !release()) return false;  // they would wait for ever
    std::shuffle(ready.begin(), ready.end(), random);
    for (Fiber* f : ready) resume(*f);
  }
}

}  // namespace

void meet_block() { pause(AT_BARRIER); }
void meet_warp(unsigned mask) {
  now->mask = mask;
  pause(IN_WARP);
}
void* slot(unsigned lane) { return slots[now->number / 32 * 32 + lane]; }

// Run all blocks of a kernel; false if threads wait for each other in vain.
bool run(void (*kernel)(void**), Size grid, Size block, void** given, char* shared, size_t size,
         unsigned seed) {
  call = kernel, arguments = given, grid_size = grid, block_size = block;
  live = block.x * block.y * block.z;
  while (fibers.size() < live) fibers.push_back(new Fiber);
  std::mt19937 random(seed);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_at = {x, y, z};
        if (size) std::memset(shared, 0xA5, size);
        if (!run_block(random)) return false;
      }
  return true;
}

}  // namespace emulation

namespace {

const size_t GUARD = 64, ALIGNMENT = 32, PAGE = 4096;
std::recursive_mutex one_at_a_time;
std::map<std::string, long> settings{{"version", 13000}, {"devices", 1},  {"major", 9},
                                     {"minor", 0},       {"seed", 0},     {"threads", 1024},
                                     {"shared", 49152},  {"most", 232448}, {"processors", 132},
                                     {"processor_threads", 2048}, {"processor_shared", 233472},
                                     {"memory", 80l << 30}};
std::map<std::string, int> failures;
std::map<std::string, long> counts;
size_t pages_of(size_t size) { return (size + ALIGNMENT + GUARD + 2 * PAGE - 1) / PAGE * PAGE; }
std::map<char*, size_t> allocations;
thread_local long contexts = 0;
using Clock = std::chrono::steady_clock;

struct Function {
  void (*call)(void**);
  char *shared, *end;
  int arguments;
  const int* sizes;  // of the arguments, in bytes
  long declared;  // bytes of shared memory, those not counted that a launch gives
};

int called(const char* name) {
  ++counts[name];
  if (std::strncmp(name, "cuCtx", 5) && contexts < 1 && counts["cuDevicePrimaryCtxRetain"] &&
      !std::strstr(name, "Device") && !std::strstr(name, "Init") && !std::strstr(name, "Version"))
    return 201;  // invalid context
  auto found = failures.find(name);
  return found == failures.end() ? 0 : found->second;
}

// -- streams, whose work may be late --

struct Stream {
  std::deque<std::function<int()>> work;
  long given = 0, done = 0;  // pieces of work
};
struct Event {
  std::map<void*, long> wanted;  // by stream, how much of its work
  Clock::time_point time;
};
std::map<void*, Stream> streams;
std::map<char*, size_t> host_memory;
int late_error = 0;

void reach(void* stream, long wanted) {
  Stream& s = streams[stream];
  while (s.done < wanted) {
    auto work = s.work.front();
    s.work.pop_front(), ++s.done;
    if (int code = work()) late_error = code;
  }
}
int finish(void* stream) {
  reach(stream, streams[stream].given);
  int code = late_error;
  late_error = 0;
  return code;
}
int finish_all() {
  std::vector<void*> known;
  for (auto& [stream, s] : streams) known.push_back(stream);
  int code = 0;
  for (void* stream : known) code = std::max(code, finish(stream));
  return code;
}
int give(void* stream, std::function<int()> work) {
  if (!settings["late"]) return work();
  ++streams[stream].given, streams[stream].work.push_back(work);
  return 0;
}
bool of_host_alloc(const void* pointer) {
  auto after = host_memory.upper_bound((char*)pointer);
  if (after == host_memory.begin()) return false;
  auto& [begin, size] = *std::prev(after);
  return (char*)pointer < begin + size;
}
int move(void* to, const void* from, size_t size) { return std::memmove(to, from, size), 0; }

bool guarded() {
  for (auto& [p, size] : allocations) {
    for (size_t i = 0; i < GUARD; ++i)
      if (p[i] != 0x5A) return false;
    for (size_t i = size; i % ALIGNMENT; ++i)
      if (p[GUARD + i] != 0x5A) return false;
  }
  return true;
}

}  // namespace

#define CALL(name)                                       \
  std::lock_guard<std::recursive_mutex> lock(one_at_a_time); \
  if (int code = called(name)) return code;

extern "C" {

void emulated_set(const char* name, long value) { settings[name] = value; }
void emulated_fail(const char* name, int code) { failures[name] = code; }
void emulated_work() { failures.clear(); }
long emulated_count(const char* name) { return counts[name]; }
long emulated_contexts() { return contexts; }

int cuInit(unsigned) { CALL("cuInit") return settings["devices"] ? 0 : 100; }
int cuDriverGetVersion(int* version) { CALL("cuDriverGetVersion") *version = settings["version"]; return 0; }
int cuDeviceGetCount(int* count) { CALL("cuDeviceGetCount") *count = settings["devices"]; return 0; }
int cuDeviceGet(int* device, int number) { CALL("cuDeviceGet") *device = number; return 0; }
int cuDeviceGetName(char* name, int size, int) { CALL("cuDeviceGetName") std::snprintf(name, size, "emulated"); return 0; }
int cuDeviceGetAttribute(int* value, int what, int) {
  CALL("cuDeviceGetAttribute")
  const char* names[128] = {};
  names[1] = "threads", names[8] = "shared", names[16] = "processors", names[75] = "major", names[76] = "minor", names[97] = "most";
  names[39] = "processor_threads", names[81] = "processor_shared";
  *value = settings[names[what]];
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) { CALL("cuDeviceTotalMem_v2") *bytes = settings["memory"]; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { CALL("cuDevicePrimaryCtxRetain") *context = &settings; return 0; }
int cuCtxGetCurrent(void** context) { CALL("cuCtxGetCurrent") *context = contexts > 0 ? &settings : nullptr; return 0; }
int cuCtxPushCurrent_v2(void* context) { CALL("cuCtxPushCurrent_v2") ++contexts; return context == &settings ? 0 : 201; }
int cuCtxPopCurrent_v2(void**) { CALL("cuCtxPopCurrent_v2") --contexts; return 0; }

int cuGetErrorString(int code, const char** text) {
  static std::map<int, const char*> known{
      {2, "out of memory"}, {100, "no CUDA-capable device is detected"}, {200, "device kernel image is invalid"},
      {209, "no kernel image is available for execution on the device"},
      {222, "the provided PTX was compiled with an unsupported toolchain."}, {500, "named symbol not found"},
      {701, "too many resources requested for launch"}, {719, "unspecified launch failure"}};
  auto found = known.find(code);
  if (found == known.end()) return 1;
  *text = found->second;
  return 0;
}

int cuModuleLoadDataEx(void** module, const char* image, unsigned count, int* options, void** values) {
  CALL("cuModuleLoadDataEx")
  char log[] = "the emulator says why", wanted[32], path[4096], here[32];
  for (unsigned i = 0; i < count; ++i)
    if (options[i] == 5) std::memcpy(values[i], log, sizeof log);
  if (std::sscanf(image, "EMULATED %31s %4095s", wanted, path) != 2) return 200;
  std::snprintf(here, sizeof here, "sm_%ld%ld", settings["major"], settings["minor"]);
  if (std::strcmp(wanted, here) && std::strcmp(wanted, "any")) return 209;
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*module) std::fprintf(stderr, "%s\n", dlerror());
  return *module ? 0 : 200;
}
int cuModuleUnload(void* module) {
  CALL("cuModuleUnload")
  return module ? 0 : 200;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  CALL("cuModuleGetFunction")
  auto f = new Function;
  *(void**)&f->call = dlsym(module, (std::string("call_") + name).c_str());
  ((void (*)(char**, char**))dlsym(module, "shared_memory_of"))(&f->shared, &f->end);
  auto given = (long (*)())dlsym(module, "given_at_launch");
  f->declared = f->end - f->shared - (given ? given() : 0);
  f->sizes = (const int*)dlsym(module, (std::string("sizes_") + name).c_str());
  f->arguments = f->sizes ? *f->sizes++ : 0;
  *function = f;
  return f->call ? 0 : 500;
}
int cuFuncSetAttribute(void*, int what, int value) {
  CALL("cuFuncSetAttribute")
  settings["attribute " + std::to_string(what)] = value;
  return 0;
}
int cuFuncGetAttribute(int* value, int what, void* function) {
  CALL("cuFuncGetAttribute")
  auto f = (Function*)function;
  *value = what == 0 ? 1024 : int(f->declared);
  return 0;
}

int cuMemAlloc_v2(uint64_t* pointer, size_t size) {
  CALL("cuMemAlloc_v2")
  if (settings["captured"] && settings["capture_mode"] != 2) return 900;
  // The last byte lies ahead of a page that nobody may read or write.
  size_t room = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, whole = pages_of(size);
  char* pages = (char*)mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return 2;
  mprotect(pages + whole - PAGE, PAGE, PROT_NONE);
  char* p = pages + whole - PAGE - room - GUARD;
  std::memset(p, 0x5A, GUARD + room), std::memset(p + GUARD, 0xA5, size);
  allocations[p] = size;
  *pointer = uint64_t(p + GUARD);
  return 0;
}
int cuMemFree_v2(uint64_t pointer) {
  CALL("cuMemFree_v2")
  if (settings["captured"]) return 900;
  finish_all();
  char* p = (char*)pointer - GUARD;
  auto found = allocations.find(p);
  if (found == allocations.end()) return 1;
  size_t whole = pages_of(found->second), room = (found->second + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  munmap((char*)pointer + room + PAGE - whole, whole);
  allocations.erase(found);
  return 0;
}
int cuMemHostAlloc(void** pointer, size_t size, unsigned) {
  CALL("cuMemHostAlloc")
  *pointer = std::memset(new char[size], 0xA5, size);
  host_memory[(char*)*pointer] = size;
  return 0;
}
int cuMemFreeHost(void* pointer) {
  CALL("cuMemFreeHost")
  finish_all();
  host_memory.erase((char*)pointer);
  delete[] (char*)pointer;
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void* stream) {
  CALL("cuMemcpyHtoDAsync_v2")
  if (of_host_alloc(from)) return give(stream, [=] { return move((void*)to, from, size); });
  std::string copy((const char*)from, size);
  return give(stream, [=] { return move((void*)to, copy.data(), size); });
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void* stream) {
  CALL("cuMemcpyDtoHAsync_v2")
  int code = give(stream, [=] { return move(to, (void*)from, size); });
  return of_host_alloc(to) ? code : std::max(code, finish(stream));
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void* stream) {
  CALL("cuMemcpyDtoDAsync_v2")
  return give(stream, [=] { return move((void*)to, (void*)from, size); });
}
int cuStreamCreate(void** stream, unsigned) { CALL("cuStreamCreate") *stream = new char; return 0; }
int cuCtxSynchronize() { CALL("cuCtxSynchronize") return finish_all(); }
int cuStreamIsCapturing(void* stream, int* status) {
  CALL("cuStreamIsCapturing")
  *status = long(stream) == settings["captured"];
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  CALL("cuThreadExchangeStreamCaptureMode")
  long before = settings["capture_mode"];
  settings["capture_mode"] = *mode;
  *mode = before;
  return 0;
}
int cuStreamSynchronize(void* stream) {
  CALL("cuStreamSynchronize")
  int code = finish(stream);
  return code ? code : guarded() ? 0 : 700;
}

int cuEventCreate(void** event, unsigned) { CALL("cuEventCreate") *event = new Event; return 0; }
int cuEventRecord(void* event, void* stream) {
  CALL("cuEventRecord")
  *(Event*)event = {{{stream, streams[stream].given}}, Clock::now()};
  return 0;
}
int cuCtxRecordEvent(void*, void* event) {
  CALL("cuCtxRecordEvent")
  *(Event*)event = {{}, Clock::now()};
  for (auto& [stream, s] : streams) ((Event*)event)->wanted[stream] = s.given;
  return 0;
}
int cuEventQuery(void* event) {
  CALL("cuEventQuery")
  for (auto& [stream, wanted] : ((Event*)event)->wanted)
    if (streams[stream].done < wanted) return 600;  // not ready
  return 0;
}
int cuEventSynchronize(void* event) {
  CALL("cuEventSynchronize")
  for (auto& [stream, wanted] : ((Event*)event)->wanted) reach(stream, wanted);
  return 0;
}
int cuEventElapsedTime(float* milliseconds, void* first, void* last) {
  CALL("cuEventElapsedTime")
  std::chrono::duration<float, std::milli> spent = ((Event*)last)->time - ((Event*)first)->time;
  *milliseconds = spent.count();
  return 0;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  CALL("cuStreamWaitEvent")
  auto wanted = ((Event*)event)->wanted;  // the event may be destroyed before the wait
  return give(stream, [=] {
    for (auto& [other, so_much] : wanted) reach(other, so_much);
    return 0;
  });
}
int cuEventDestroy_v2(void* event) { CALL("cuEventDestroy_v2") delete (Event*)event; return 0; }

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned, void* stream, void** arguments, void**) {
  CALL("cuLaunchKernel")
  if (!gx || !gy || !gz) return 1;  // an invalid value
  if (long(bx) * by * bz > settings["threads"]) return 701;
  auto f = (Function*)function;
  std::vector<uint64_t> values(f->arguments);  // read now, whatever becomes of them
  for (int i = 0; i < f->arguments; ++i) std::memcpy(&values[i], arguments[i], f->sizes[i]);
  return give(stream, [=]() mutable {
    std::vector<void*> places;
    for (auto& value : values) places.push_back(&value);
    return emulation::run(f->call, {gx, gy, gz}, {bx, by, bz}, places.data(), f->shared,
                          f->end - f->shared, unsigned(settings["seed"]))
               ? 0
               : 719;
  });
}

}  // extern "C"
