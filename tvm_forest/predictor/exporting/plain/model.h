/* A forest of ${trees} trees: (n, ${features}) -> (n, ${outputs}), in C99. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
enum { ${PREFIX}FEATURES = ${features}, ${PREFIX}OUTPUTS = ${outputs} };
typedef ${row} ${prefix}row;
typedef ${margin} ${prefix}margin;
typedef ${value} ${prefix}value;
/* rows (n, features), NaN for a missing value; margin and value (n, outputs), one row behind the other.
   ${null}Returns 0, or -1 where the rows hold what the model refuses or n is negative. It takes no memory but a
   little of the stack, and any number of threads may call it. */
int ${prefix}predict(const ${row} *rows, int64_t n, ${margin} *margin, ${value} *value);
#ifdef __cplusplus
}
#endif
