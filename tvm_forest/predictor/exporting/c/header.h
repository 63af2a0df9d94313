/* A forest of ${trees} trees: ${shapes}. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Functions that return an int return 0, or -1, or -2 where the processor lacks instructions that the
   library is made of; ${prefix}error() says why, to the thread that called. */
const char *${prefix}error(void);
int ${prefix}check(void); /* whether this processor has all instructions; no call needs it before */
int64_t ${prefix}features(void);
int64_t ${prefix}outputs(void);
const char *${prefix}types(void); /* of rows, margins and values: "${row_type} ${margin_type} ${value_type}" */
/* rows (n, features) and margin (n, outputs), one row behind the other; value likewise, or NULL.
   n_jobs threads share out the rows, -1 for one on each core. Any number of threads may call it. */
int ${prefix}predict(const ${row} *rows, int64_t n, ${margin} *margin, ${value} *value, int n_jobs);
${there}${explained}/* label (n, labels): numbers of classes. */
int ${prefix}predict_labels(const ${row} *rows, int64_t n, int64_t *label, int n_jobs);
int64_t ${prefix}labels(void);
int64_t ${prefix}classes(void);
int64_t ${prefix}categories(int64_t feature); /* whose names are known; rows hold their codes, from 0 */
/* UTF-8; NULL where there is no name. */
const char *${prefix}feature_name(int64_t feature);
const char *${prefix}class_name(int64_t number);
const char *${prefix}category_name(int64_t feature, int64_t code);
#ifdef __cplusplus
}
#endif
