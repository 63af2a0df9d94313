"""The page of what is accepted; as a program, writes docs/support.md.

python tests/support_page.py        # or: make golden
"""

from __future__ import annotations

from pathlib import Path

import tvm_forest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "support.md"
HEAD = """\
# What is accepted

Made by `make golden` from `tvm_forest.SUPPORT`, which comes from the tables that decide it; at a
terminal, `tvm-forest info --support` shows the same.

- **exact**: margins, values and labels equal the training library's to the bit.
- **within N ulp**: margins are equal to the bit. Values, which a link makes of them by `exp`, are
  at most N units of the last place away (of 1, for `logistic` of ONNX; of float32, for `softmax` of
  treelite models of doubles).
- **refused**: `UnsupportedModel` is raised and names the field.

`tests/sweep.py` draws models with default and odd options and compares each with its library.
Before its findings were mended, XGBoost 3.2 had 58 failures in 500 models, 3.4.1 31 in 300,
LightGBM 29 in 500 (and 5 crashes of its own), scikit-learn 3 in 500. Of the first 500 of each,
2026-11-24:

| library | equal | refused, by a field below | failed | not trained |
|---|---:|---:|---:|---:|
| XGBoost 3.2 | 487 | 13 | 0 | 0 |
| LightGBM 4.7 | 489 | 6 | 0 | 5, LightGBM crashes |
| scikit-learn 1.9 | 487 | 11 | 2 | 0 |
| CatBoost 1.2.10 | 480 | 19 | 0 | 1 |
| YDF 0.16.1 | 384 | 110 | 0 | 6 |

The two of scikit-learn (248 and 389) were frames with columns of categories for a histogram
boosting without names of them; such rows were refused, are read since then, and equal. One of YDF
(399) was answered wrongly and is refused since then (`boundaries`). 77 configurations of CatBoost
(`make catboost`), 10,000 hard rows each: no margin differs. Of its 28 losses, all that `predict`
can be asked for (`prediction_type`), on 100,000 hard rows each: no value differs
([How exact](exactness.md#catboosts-values)).

`tvm_forest.verify(model, rows)` and `tvm-forest verify model.json rows.csv` show it for one model.
"""


def page_text() -> str:
    """Return the page with a table for each library."""
    parts = [HEAD]
    for library in dict.fromkeys(row.library for row in tvm_forest.SUPPORT):
        parts.append(f"\n## {library}\n\n| part | name | how | note |\n|---|---|---|---|\n")
        for row in tvm_forest.SUPPORT:
            if row.library == library:
                parts.append(f"| {row.part} | `{row.name}` | {row.how} | {row.note} |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
