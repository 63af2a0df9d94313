/* A forest of ${trees} trees: ${shapes}. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
int64_t ${prefix}features(void);
int64_t ${prefix}outputs(void);
/* rows (n, features) and margin (n, outputs), one row behind the other; value likewise, or NULL.
   Returns 0, or -1 and ${prefix}error() says why. Any number of threads may call it. */
int ${prefix}predict(const ${row} *rows, int64_t n, ${margin} *margin, ${value} *value);
${there}const char *${prefix}error(void);
#ifdef __cplusplus
}
#endif
