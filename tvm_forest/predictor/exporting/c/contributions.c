/* SHAP values, by functions that TVM compiled for a CPU. "config.h" lists them:
 *
 *   EXPLAINING(F)    F(smallest batch, name, AT(place of an array) ...)
 *   EXPLAINED_WIDE   whether they read membership columns
 *   EXPECTED_AT      place of the expected margins, one for each output
 */
#define DECLARE_EXPLAINING(smallest, name, ...) HIDDEN Function COMPILED(name);
EXPLAINING(DECLARE_EXPLAINING)
#define EXPLAINING_FUNCTION(smallest, name, ...) {smallest, COMPILED(name), {__VA_ARGS__}},
static const struct { int64_t smallest; Function *call; address model[64]; } explaining[] = {
    EXPLAINING(EXPLAINING_FUNCTION)};

static int explain(const ROW *ready, part p) {
  int k = sizeof explaining / sizeof *explaining - 1;
  while (k && p.n < explaining[k].smallest) --k;
  int64_t shape[3] = {p.n, OUTPUTS, FEATURES + 1};
  DLTensor result = {p.contributions, {kDLCPU, 0}, 3, {kDLFloat, 64, 1}, shape, NULL, 0};
  if (invoke(explaining[k].call, explaining[k].model, ready, p.n, width_of(EXPLAINED_WIDE), &result, 1)) return WRONG;
  const double *expected = (const double *)(tvm_forest_data + EXPECTED_AT);
  for (int64_t i = 0; i < p.n * OUTPUTS; ++i) p.contributions[i * (FEATURES + 1) + FEATURES] = expected[i % OUTPUTS];
  return 0;
}
