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
