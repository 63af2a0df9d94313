/* Predicts one row at a time. */
#include <stdio.h>
#include <stdlib.h>

#include "libiris.h"

int main(void) {
  int64_t features = iris_features(), outputs = iris_outputs(), label;
  float *row = malloc(features * sizeof *row);
  float *margin = malloc(outputs * sizeof *margin), *value = malloc(outputs * sizeof *value);
  for (;;) {
    for (int64_t i = 0; i < features; ++i)
      if (scanf("%f", &row[i]) != 1) return 0;
    if (iris_predict(row, 1, margin, value, 1) || iris_predict_labels(row, 1, &label, 1)) {
      fprintf(stderr, "%s\n", iris_error());
      return 1;
    }
    for (int64_t i = 0; i < outputs; ++i) printf("%.9g ", value[i]);
    printf("%s\n", iris_class_name(label));
  }
}
