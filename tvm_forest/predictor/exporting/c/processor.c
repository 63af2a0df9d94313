/* Whether this processor has the instructions that the compiled functions are made of. All C code of
 * the library is compiled for every processor of its kind, so this answers where they would not run.
 * "config.h" lists the instructions:
 *
 *   ABILITIES(A)  A(name, word, ...), where a word of the processor's answers has a bit for it:
 *                 on x86-64   A(name, leaf, part, register, bit, state that the system has to keep)
 *                 on others   A(name, word of the system's list, bit)
 */
#if defined __x86_64__
#include <cpuid.h>

typedef struct { const char *name; unsigned leaf, part, place, bit; unsigned long long state; } ability;

static unsigned long long kept_state(void) {
  unsigned low, high, out[4];
  if (!__get_cpuid(1, &out[0], &out[1], &out[2], &out[3]) || !(out[2] >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
#ifdef __APPLE__
  low |= low & 4 ? 0xe0 : 0; /* which this system begins to keep once it is used */
#endif
  return (unsigned long long)high << 32 | low;
}

static int has(const ability *a) {
  unsigned out[4];
  if (!__get_cpuid_count(a->leaf, a->part, &out[0], &out[1], &out[2], &out[3])) return 0;
  return (out[a->place] >> a->bit & 1) && (!a->state || (kept_state() & a->state) == a->state);
}
#elif defined __linux__ && (defined __aarch64__ || defined __riscv)
#include <sys/auxv.h>

typedef struct { const char *name; int word, bit; } ability;

static int has(const ability *a) { return getauxval(a->word ? AT_HWCAP2 : AT_HWCAP) >> a->bit & 1; }
#else
typedef struct { const char *name; unsigned word[5]; } ability;

static int has(const ability *a) { return a != NULL; }
#endif

#define ABILITY(...) {__VA_ARGS__},
static const ability abilities[] = {ABILITIES(ABILITY) {0}};

SEEN int PUBLIC(check)(void) {
  static char is_known; /* 1 once nothing was found to lack */
  char lacking[384] = "";
  if (__atomic_load_n(&is_known, __ATOMIC_RELAXED)) return 0;
  for (const ability *a = abilities; a->name; ++a) {
    size_t used = strlen(lacking);
    if (!has(a)) snprintf(lacking + used, sizeof lacking - used, "%s%s", used ? ", " : "", a->name);
  }
  if (!*lacking) {
    __atomic_store_n(&is_known, 1, __ATOMIC_RELAXED);
    return 0;
  }
  snprintf(message, sizeof message, "this processor lacks what the library is made of: %s", lacking);
  return LACKING;
}
