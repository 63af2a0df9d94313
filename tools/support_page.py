"""The page of what is accepted; as a program, writes docs/support.md.

python tools/support_page.py        # or: make golden
"""

from __future__ import annotations

from pathlib import Path

import tvm_forest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "support.md"
HEAD = """\
# What is accepted

**Models of CatBoost, LightGBM, ONNX, scikit-learn, treelite, XGBoost and YDF are accepted, except
for the parts marked "refused" below.** Try yours: `build` compiles it, or raises an
`UnsupportedModel` that names the part.

```python
import xgboost
from sklearn.datasets import load_breast_cancer

import tvm_forest

rows, labels = load_breast_cancer(return_X_y=True)
model = xgboost.XGBClassifier(n_estimators=5, booster="gblinear").fit(rows, labels)
try:
    tvm_forest.build(model)
except tvm_forest.UnsupportedModel as error:
    print(str(error).partition(";")[0])
```

```text
xgboost XGBClassifier: field 'booster': expected 'gbtree' or 'dart', got 'gblinear'
```

The column "how" has one of these:

- **exact**: margins, values and labels equal the training library's to the bit.
- **within N ulp**: margins are equal to the bit. Values, which a link makes of them by `exp`, are
  at most N units of the last place away (of 1, for `logistic` of ONNX; of float32, for `softmax` of
  treelite models of doubles).
- **refused**: `UnsupportedModel` is raised and names the field.

`tvm_forest.verify(model, rows)` and `tvm-forest verify model.json rows.csv` compare one model
with its library. `tvm-forest info --support` prints these tables; `make golden` writes this page
from `tvm_forest.SUPPORT`. Estimators of quantile-forest are on [a page of their own](quantiles.md).
"""
TRIED = """
## How it was tried

`tools/sweep.py` draws models with default and odd options and compares each with its library. Of
the first 500 of each, 2026-11-24:

| library | equal | refused, by a field above | failed | not trained |
|---|---:|---:|---:|---:|
| XGBoost 3.2 | 487 | 13 | 0 | 0 |
| LightGBM 4.7 | 489 | 6 | 0 | 5, LightGBM crashes |
| scikit-learn 1.9 | 487 | 11 | 2, equal since then | 0 |
| CatBoost 1.2.10 | 480 | 19 | 0 | 1 |
| YDF 0.16.1 | 384 | 110 | 0 | 6 |

The two of scikit-learn (248 and 389) were frames with columns of categories for a histogram
boosting that does not know the names of its columns. One model of YDF (399) was answered wrongly
and is refused since then (`boundaries`). `make catboost` compares 77 configurations of CatBoost
on 10,000 hard rows each: no margin differs. Nor does any value of its 28 losses, by every
`prediction_type` on 100,000 hard rows each ([How exact](exactness.md#catboosts-values)).
"""


def page_text() -> str:
    """Return the page with a table for each library."""
    parts = [HEAD]
    for library in dict.fromkeys(row.library for row in tvm_forest.SUPPORT):
        parts.append(f"\n## {library}\n\n| part | name | how | note |\n|---|---|---|---|\n")
        for row in tvm_forest.SUPPORT:
            if row.library == library:
                parts.append(f"| {row.part} | `{row.name}` | {row.how} | {row.note} |\n")
    return "".join([*parts, TRIED])


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
