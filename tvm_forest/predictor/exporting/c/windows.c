/* What a .dll needs of a C library besides the functions of Windows' own, the universal C runtime:
 * where Windows enters it, its part of the memory of threads, a function that the runtime has under
 * another name, and one that compilers call. Zig would compile all of MinGW's C library for these,
 * which takes minutes. */

#include <stdarg.h>

BOOL WINAPI DllMainCRTStartup(HINSTANCE library, DWORD reason, LPVOID reserved) {
  (void)library, (void)reason, (void)reserved;
  return TRUE; /* nothing is to be begun or ended */
}

/* The linker orders parts of a section by what follows the "$": those of variables, "$" and no
 * more, lie between these. */
static __attribute__((section(".tls"))) char first_of_thread = 0;
static __attribute__((section(".tls$ZZZ"))) char last_of_thread = 0;

unsigned long _tls_index = 0;

__attribute__((used, section(".rdata$T"))) const IMAGE_TLS_DIRECTORY _tls_used = {
    .StartAddressOfRawData = (ULONG_PTR)&first_of_thread,
    .EndAddressOfRawData = (ULONG_PTR)&last_of_thread,
    .AddressOfIndex = (ULONG_PTR)&_tls_index,
};

enum { ALL_THAT_C99_SAYS = 2 }; /* the end of a text that is too long is written, too */

int snprintf(char *text, size_t size, const char *format, ...) {
  va_list values;
  va_start(values, format);
  int length = __stdio_common_vsprintf(ALL_THAT_C99_SAYS, text, size, format, NULL, values);
  va_end(values);
  return length;
}

/* Functions with more than a page of variables call it, with their bytes in rax, before they move
 * the stack: Windows adds pages to a stack one after the other, each when it is first touched. No
 * register may change. */
__asm__(".globl ___chkstk_ms\n"
        "___chkstk_ms:\n"
        "  push %rax\n"
        "  push %rcx\n"
        "  lea 24(%rsp), %rcx\n"
        "0: cmp $4096, %rax\n"
        "  jb 1f\n"
        "  sub $4096, %rcx\n"
        "  test %cl, (%rcx)\n"
        "  sub $4096, %rax\n"
        "  jmp 0b\n"
        "1: sub %rax, %rcx\n"
        "  test %cl, (%rcx)\n"
        "  pop %rcx\n"
        "  pop %rax\n"
        "  ret\n");
