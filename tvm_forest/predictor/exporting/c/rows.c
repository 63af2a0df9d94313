/* Rows as the compiled functions read them: what the model takes for missing is NaN, and membership
 * columns follow, if a function reads them, where 1 sends a row to the right. "config.h" gives
 *
 *   IS_MISSING(x)            whether a number means missing, beside NaN
 *   ZEROS, ZEROS_AT          how many features take zeros for missing, and the place of their list
 *   KNOWN(K)                 K(feature, whether it is compared as a number too, count of the
 *                            categories beside which all values are missing, their place)
 *   MEMBERSHIPS(M)           M(feature, columns, count of categories, their place, place of the
 *                            columns of each, and of those of other values)
 *   IS_NO_CATEGORY(x)        whether a number is no category
 */
typedef struct { int64_t feature; int is_compared; int64_t count, at; } known_categories;
typedef struct { int64_t feature, columns, count, at, right_at; } memberships;

#define ENTRY_OF_LIST(...) {__VA_ARGS__},
static const known_categories known[] = {KNOWN(ENTRY_OF_LIST) {-1, 0, 0, 0}};
static const memberships tables[] = {MEMBERSHIPS(ENTRY_OF_LIST) {-1, 0, 0, 0, 0}};

static int is_changed(int wide) { return MARKS || wide; }

/* The place of a category in an ascending list, or the count of the list. */
static int64_t find(const int64_t *list, int64_t count, int64_t code) {
  int64_t low = 0, high = count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (list[middle] < code) low = middle + 1;
    else high = middle;
  }
  return low < count && list[low] == code ? low : count;
}

static int is_in(const int64_t *list, int64_t count, ROW x) {
  if (!(x > -9e15 && x < 9e15) || x != (ROW)(int64_t)x) return 0;
  return find(list, count, (int64_t)x) < count;
}

static void mark_missing(ROW *row, int wide) {
  const int32_t *zeros = (const int32_t *)(tvm_forest_data + ZEROS_AT);
  for (int64_t i = 0; i < FEATURES; ++i)
    if (IS_MISSING(row[i])) row[i] = NAN;
  for (int64_t i = 0; i < ZEROS; ++i)
    if (fabs(row[zeros[i]]) <= 1e-35f) row[zeros[i]] = NAN;
  for (const known_categories *each = known; each->feature >= 0; ++each) {
    const int64_t *list = (const int64_t *)(tvm_forest_data + each->at);
    if (!(wide || each->is_compared) || is_in(list, each->count, row[each->feature])) continue;
    row[each->feature] = NAN;
  }
}

static void add_memberships(ROW *row) {
  ROW *to = row + FEATURES;
  for (const memberships *each = tables; each->feature >= 0; to += each++->columns) {
    const int64_t *list = (const int64_t *)(tvm_forest_data + each->at);
    ROW x = row[each->feature];
    int64_t code = IS_NO_CATEGORY(x) ? -1 : (int64_t)x;
    const ROW *right = (const ROW *)(tvm_forest_data + each->right_at);
    right += find(list, each->count, code) * each->columns;
    for (int64_t i = 0; i < each->columns; ++i) to[i] = isnan(x) ? (ROW)NAN : right[i];
  }
}

static void make_ready(int wide, const ROW *rows, int64_t n, ROW *ready) {
  for (int64_t i = 0; i < n; ++i) {
    ROW *row = ready + i * width_of(wide);
    memcpy(row, rows + i * FEATURES, FEATURES * sizeof *row);
    mark_missing(row, wide);
    if (wide) add_memberships(row);
  }
}
