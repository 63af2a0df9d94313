/* Labels, and the names of features, classes and categories. "config.h" gives
 *
 *   FEATURE_NAMES, CLASS_NAMES  texts with a comma behind each
 *   CATEGORY_NAMES(C)           C(feature, texts) in the order of the codes
 *   LABEL_RULE                  how a label is chosen, see below; LABEL_CUT for CUT
 *   TARGETS                     outputs of each target, with a comma behind each
 *   LABELS                      labels of a row
 */
enum { NO_LABELS, HALF, CUT, LARGEST_MARGIN, TOP_MARGIN, LARGEST_VALUE };

static const char *const feature_names[] = {FEATURE_NAMES NULL};
static const char *const class_names[] = {CLASS_NAMES NULL};
static const int64_t targets[] = {TARGETS 0};

#define NAMES_OF(...) (const char *const[]){__VA_ARGS__}
#define CATEGORIES(feature, ...) {feature, sizeof(NAMES_OF(__VA_ARGS__)) / sizeof(char *), NAMES_OF(__VA_ARGS__)},
static const struct { int64_t feature, count; const char *const *names; } categories[] = {
    CATEGORY_NAMES(CATEGORIES) {-1, 0, NULL}};

static const char *name_of(const char *const *names, int64_t count, int64_t k) {
  return k >= 0 && k < count ? names[k] : NULL;
}

static int64_t place_of(int64_t feature) {
  int64_t k = 0;
  while (categories[k].feature >= 0 && categories[k].feature != feature) ++k;
  return k;
}

#define COUNT_OF(list) ((int64_t)(sizeof(list) / sizeof *(list)) - 1)

SEEN const char *PUBLIC(feature_name)(int64_t k) { return name_of(feature_names, COUNT_OF(feature_names), k); }
SEEN int64_t PUBLIC(classes)(void) { return COUNT_OF(class_names); }
SEEN const char *PUBLIC(class_name)(int64_t k) { return name_of(class_names, COUNT_OF(class_names), k); }
SEEN int64_t PUBLIC(labels)(void) { return LABELS; }
SEEN int64_t PUBLIC(categories)(int64_t feature) { return categories[place_of(feature)].count; }

SEEN const char *PUBLIC(category_name)(int64_t feature, int64_t code) {
  int64_t place = place_of(feature);
  return name_of(categories[place].names, categories[place].count, code);
}

/* Whether x takes the place of the largest number so far, as numpy has it: NaN is above all. */
#define IS_LARGER(x, best) ((x) > (best) || (isnan(x) && !isnan(best)))

static void choose_labels(const RESULT *margin, const VALUE *value, int64_t *label) {
  if (LABEL_RULE == HALF || LABEL_RULE == CUT) {
    for (int64_t i = 0; i < OUTPUTS; ++i)
      label[i] = LABEL_RULE == HALF ? value[i] > 0.5 : margin[i] >= (RESULT)LABEL_CUT;
    return;
  }
  int64_t first = 0;
  for (int64_t t = 0; t < LABELS; first += targets[t++]) {
    label[t] = first;
    for (int64_t i = first + 1; i < first + targets[t]; ++i)
      if (LABEL_RULE == TOP_MARGIN       ? margin[i] > margin[label[t]]
          : LABEL_RULE == LARGEST_MARGIN ? IS_LARGER(margin[i], margin[label[t]])
                                         : IS_LARGER(value[i], value[label[t]]))
        label[t] = i;
  }
}

SEEN int PUBLIC(predict_labels)(const ROW *rows, int64_t n, int64_t *label, int n_jobs) {
  if (LABEL_RULE == NO_LABELS) return fail("the model has no classes");
  int code = check_call(rows, n, label, n_jobs);
  if (code || n == 0) return code;
  RESULT *margin = malloc(n * OUTPUTS * sizeof *margin);
  VALUE *value = malloc(n * OUTPUTS * sizeof *value);
  code = margin && value ? PUBLIC(predict)(rows, n, margin, value, n_jobs) : fail("out of memory");
  for (int64_t i = 0; i < n && !code; ++i)
    choose_labels(margin + i * OUTPUTS, value + i * OUTPUTS, label + i * LABELS);
  free(margin);
  free(value);
  return code;
}
