/* Threads that share out the rows of a batch. They begin and end with the call, so that a program may
 * fork or close the library between calls.
 */
#if defined __wasm__ || !(defined _WIN32 || defined __unix__ || defined __APPLE__)
static int share_out(part whole, int jobs) {
  (void)jobs;
  return run(whole);
}
#else
enum { FEWEST = 64 }; /* rows of a thread, which are to be worth its start */

typedef struct { part part; int failed; char text[sizeof message]; } task;

static void finish(task *t) {
  t->failed = run(t->part);
  if (t->failed) memcpy(t->text, message, sizeof message);
}

#ifdef _WIN32
typedef HANDLE thread;

static DWORD WINAPI begin(void *t) { return finish(t), 0; }

static int start(thread *made, task *t) {
  *made = CreateThread(NULL, 0, begin, t, 0, NULL);
  return *made != NULL;
}

static void join(thread made) {
  WaitForSingleObject(made, INFINITE);
  CloseHandle(made);
}

static int64_t cores(void) { return GetActiveProcessorCount(ALL_PROCESSOR_GROUPS); }
#else
#include <pthread.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

typedef pthread_t thread;

static void *begin(void *t) { return finish(t), NULL; }
static int start(thread *made, task *t) { return !pthread_create(made, NULL, begin, t); }
static void join(thread made) { pthread_join(made, NULL); }

static int64_t cores(void) {
#if defined __linux__ && defined CPU_COUNT
  cpu_set_t allowed;
  if (!sched_getaffinity(0, sizeof allowed, &allowed)) return CPU_COUNT(&allowed);
#endif
  int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? online : 1;
}
#endif

/* Predict by up to so many threads, the caller's among them; -1 for one on each core. */
static int share_out(part whole, int jobs) {
  if (jobs == 1 || whole.n <= FEWEST) return run(whole);
  int64_t wanted = jobs == -1 ? cores() : jobs, most = (whole.n + FEWEST - 1) / FEWEST;
  int64_t count = SHARES || whole.contributions ? least(wanted, most) : 1;
  int64_t rows = (whole.n + count - 1) / count, block = block_of(which(rows));
  if (block > 0) rows = (rows + block - 1) / block * block;
  count = (whole.n + rows - 1) / rows;
  if (count == 1) return run(whole);
  task *tasks = malloc(count * sizeof *tasks);
  thread *threads = malloc(count * sizeof *threads);
  int failed = !tasks || !threads ? fail("out of memory") : 0;
  int64_t begun = 0;
  for (int64_t i = 0; i < count && !failed; ++i)
    tasks[i].part = slice(whole, i * rows, least(rows, whole.n - i * rows));
  while (!failed && begun < count - 1 && start(&threads[begun], &tasks[begun])) ++begun;
  for (int64_t i = begun; i < count && !failed; ++i) finish(&tasks[i]); /* those without a thread */
  for (int64_t i = 0; i < begun; ++i) join(threads[i]);
  for (int64_t i = 0; i < count && tasks && threads && !failed; ++i)
    if (tasks[i].failed) failed = fail(tasks[i].text);
  free(tasks);
  free(threads);
  return failed;
}
#endif
