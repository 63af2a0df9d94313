"""The page of how exact we are; as a program, writes docs/exactness.md from a run.

python tools/differential.py --json build/differential.json      # or: make differential
python tools/exactness_page.py build/differential.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from differential import CASES, Entry, of_case

PAGE = Path(__file__).resolve().parents[1] / "docs" / "exactness.md"
SHOWN = 4
"""Models that a cell names; the others are listed below the table."""


class Case(NamedTuple):
    """What a case asks, what other engines return without a word, and what they refuse."""

    asks: str
    silent: str
    refused: str = ""


ABOUT = {
    "X1": Case(
        "the margin of a regression to the bit",
        "none beyond rounding; rows equal: daal4py 100 %, GTIL 36-47 %, tl2cgen 44-50 %, "
        "onnxruntime 30-34 %",
    ),
    "X2": Case("logistic with a `base_score` of other than 0.5", "treelite: last bit, 22 of 40"),
    "X3": Case("rows on thresholds, NaN, ±0, denormals, ±inf (in all rows here)", "none found"),
    "X4": Case("`missing=-999` in the estimator", "treelite: 635 of 2,000 rows"),
    "X5": Case("`multi:softmax` returns labels", "GTIL, tl2cgen: shape (n, k)"),
    "X6": Case(
        "quantiles, `base_score` a vector",
        "tl2cgen, onnxruntime: all rows; timber: shape",
        "daal4py",
    ),
    "X7": Case("ranking", "onnxruntime: all rows, by a constant"),
    "X8": Case(
        "several targets or labels, a tree for each",
        "tl2cgen, onnxruntime: all rows; timber: shape",
        "daal4py",
    ),
    "X9": Case("leaves that hold vectors", "tl2cgen: all rows", "onnxmltools, daal4py"),
    "X10": Case("DART", "timber: all rows", "onnxmltools, daal4py"),
    "X11": Case("`num_parallel_tree`, also with classes", "timber: all rows", "daal4py"),
    "X12": Case("categories, one-hot and in sets, odd codes", "timber: 3,992 rows", "daal4py"),
    "X13": Case("links of Poisson, gamma, Tweedie", "timber: all rows (Poisson)"),
    "X14": Case(
        "categories by name; gblinear, which is refused here too",
        "",
        "treelite; no other knows them",
    ),
    "X15": Case(
        "estimators that stopped early; "
        "ranges of rounds in `tests/frontends/test_iteration_range.py`",
        "all that take the whole booster",
    ),
    "X16": Case("a regression with default options", "timber: 2,835-3,727 rows, by up to 0.28"),
    "L1": Case("NaN at predict only", "daal4py: 775 rows"),
    "L2": Case("`zero_as_missing`", "treelite, tl2cgen, onnxruntime: 1,984 rows"),
    "L3": Case("the same near 1e-35", "treelite, tl2cgen, onnxruntime, lleaves: 1,984 rows"),
    "L4": Case("rows on float64 thresholds (in all rows here)", "daal4py: 1,998 of 2,000 rows"),
    "L5": Case(
        "categories, odd codes",
        "onnxruntime: 214 rows; treelite, tl2cgen: all rows with the code -0.5",
        "daal4py",
    ),
    "L6": Case("`multiclassova`", "onnxruntime: all rows", "lleaves, daal4py"),
    "L7": Case(
        "`boosting=rf`, also with classes",
        "onnxruntime: all rows; lleaves: all rows with classes",
        "daal4py",
    ),
    "L8": Case("`reg_sqrt`", "onnxruntime: all rows"),
    "L9": Case("`linear_tree`", "lleaves, onnxruntime: 3,999 rows", "treelite, tl2cgen, daal4py"),
    "L10": Case("`cross_entropy_lambda`, lambdarank, dart, Poisson", "", "onnxmltools (the first)"),
    "S1": Case("float64 rows near thresholds", "GTIL given float64: 620 rows"),
    "S2": Case("NaN in training, and at predict only", "onnxruntime: 2,854 rows"),
    "S3": Case(
        "several targets, of numbers or classes",
        "onnxruntime: 3,810 rows (classes)",
        "skl2onnx (float64)",
    ),
    "S4": Case(
        "gradient boosting, which starts from its base score; unseen categories",
        "GTIL: last bits, and 3,592 rows or more; daal4py: 416 rows",
    ),
    "S5": Case("classes that are texts or any numbers", ""),
    "O1": Case(
        "all modes, NaN and its flag, both dtypes, sets, MIN, MAX, AVERAGE, transforms",
        "onnxruntime: NaN at NEQ",
    ),
    "C1": Case(
        "sparse rows without some entries",
        "treelite: missing, also where the library means 0",
        "nvForest, lleaves",
    ),
    "C2": Case(
        "single leaves, no trees, one feature; forms of rows in `tests/predictor/test_inputs.py`",
        "",
    ),
}
HEAD = """\
# How exact

**A compiled model gives the predictions of the library that trained it, to the last bit.** {answer}
"Equal" means that every bit is equal. A probability is made of the margin by a link, such as the
sigmoid, and the column "ulp" has the largest difference found, in units of the last place.

"""
CHECK = """
## Check your own model

`verify` compares the compiled model with the library that trained it, on rows made to be hard: on
every threshold and beside it, missing, infinite, and smaller than any normal float.

```python
import xgboost
from sklearn.datasets import load_breast_cancer

import tvm_forest

rows, labels = load_breast_cancer(return_X_y=True)
model = xgboost.XGBClassifier(n_estimators=20, max_depth=4).fit(rows, labels)
report = tvm_forest.verify(model, rows)
assert report.ok
print(str(report).splitlines()[0])
```

```text
xgboost binary:logistic: equal
```

On the command line, `tvm-forest verify model.json rows.csv` does the same. [How it is
exact](equality.md) explains why forests are not equal by themselves.

"""
CASE_HEAD = """
## Where other engines differ

Each case is one in which another engine was found to differ from the library that trained the
model, by more than 1e-5 of max(1, |margin|). "Silently wrong" counts rows of 4,000 unless another
number is given.

| case | what it asks | our models | rows equal | ulp | silently wrong | refused by |
|---|---|---|---|---|---|---|
"""
PEERS = """
The other engines were treelite 4.8.1 (its interpreter is GTIL), tl2cgen 1.0.0, lleaves 1.3.0,
onnxruntime 1.31.1 with onnxmltools 1.16 and skl2onnx 1.20, daal4py 2026.2 and timber 0.6.0, beside
XGBoost 3.2.0, LightGBM 4.7.0 and scikit-learn 1.9.1, which had trained the models.
"""
METHOD = """
## How it was counted

`make differential` compiles every model of the tests by its default schedule and compares it with
the library that trained it, on {rows:,} rows for each model. These are rows on the model's own
thresholds and beside them, known and unknown categories, NaN, infinities, signed zeros, denormals
and the largest floats; a quarter of the rows are typical ones. {counted}

"""


CATBOOST = """\
## CatBoost's values

Of CatBoost's 28 losses, all that its `predict` gives (`RawFormulaVal`, `Class`, `Probability`,
`LogProbability`, `Exponent`, `RMSEWithUncertainty`) is equal to the bit on 100,000 hard rows each,
of estimators and plain `CatBoost` objects, also with margins far beyond the range of `exp`
(`make catboost`; CatBoost 1.2.10, x86 with AVX2). What follows from how CatBoost computes them:

- `MultiClass`, `Poisson`, `Tweedie` and `RMSEWithUncertainty` have an exponential of CatBoost's
  own, which compiled code repeats on every target. On other processors than x86 CatBoost itself has
  another one: values are up to 1024 units of the last place from it there.
- It takes four powers at once, of the rows of a call or of the classes of a row, and the last one
  to three alone. Only those below `exp(-708.4)` differ: 2.2e-308 or, alone, 0. So the value of such
  a row depends on its place among the rows of the call, to CatBoost and here. A server that joins
  requests, or a file that is read in batches, makes other calls.
- Logarithms, and the sigmoid of one output or of labels by themselves, are made by the C library.
  They are equal where code is run with the C library that CatBoost uses. The sigmoid is within 4
  units of the last place elsewhere, such as on GPUs.
"""
"""What `tools/catboost_configurations.py` shows, for its models are not among those of a run."""


def page_text(run: dict[str, Any]) -> str:
    """Return the page of a run."""
    entries: list[Entry] = run["models"]
    lines = [HEAD.format(answer=answer(entries)), *totals(entries), CHECK, CATBOOST, CASE_HEAD]
    lines += [f"| {' | '.join(case_row(case, entries))} |\n" for case in CASES]
    lines += [PEERS, "\n## Old and new files\n\n", *files(entries)]
    counted = {"rows": run["rows"], "counted": compared(entries, run["rows"])}
    lines += [METHOD.format(**counted), "### Models of each case\n\n"]
    for case in CASES:
        names = ", ".join(found["name"] for found in of_case(case, entries))
        lines.append(f"- **{case}**: {names or 'none'}.\n")
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    lines += ["\n### Versions\n\n", f"{versions}.\n"]
    return "".join(lines)


def answer(entries: list[Entry]) -> str:
    """Return how many models, margins and labels were compared, and how many differ."""
    tried = [entry for entry in entries if "not compared" not in entry]
    counts = {
        key: [e[key] for e in tried if (e.get(key) or [None])[0] is not None]
        for key in ("library", "labels")
    }
    margins, labels = (sum(rows for _, rows in counts[key]) for key in ("library", "labels"))
    differ = sum(not entry["ok"] for entry in entries)
    return (
        f"{differ} of {len(tried)} models differ: {margins:,} rows were compared by their "
        f"margins and {labels:,} by their labels. {len(entries) - len(tried)} more "
        "are refused by name."
    )


def case_row(case: str, entries: list[Entry]) -> list[str]:
    """Return the cells of a case."""
    about, found = ABOUT[case], of_case(case, entries)
    names = [entry["name"].split(": ", 1)[1] for entry in found]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = f"{', '.join(names[:SHOWN])}{more}" if names else "refused by name"
    return [case, about.asks, shown, rows_equal(found), largest(found), about.silent, about.refused]


def rows_equal(entries: list[Entry]) -> str:
    """Return how many rows have equal margins, and equal labels."""
    parts = []
    for key, what in (("library", ""), ("labels", " labels")):
        counts = [entry[key] for entry in entries if entry.get(key) and entry[key][0] is not None]
        if counts:
            equal, rows = (sum(column) for column in zip(*counts, strict=True))
            parts.append(f"{equal:,} of {rows:,}{what}")
    values = sum(entry.get("library", [0])[0] is None for entry in entries)
    return "; ".join([*parts, *([f"{values} models by values"] if values else [])])


def largest(entries: list[Entry]) -> str:
    """Return the largest distance of values."""
    found = [entry["ulp"] for entry in entries if entry.get("ulp") is not None]
    return str(max(found)) if found else ""


def totals(entries: list[Entry]) -> list[str]:
    """Return a table with a line for each library."""
    lines = [
        "| library | models | rows equal | ulp | models that differ |\n|---|---|---|---|---|\n"
    ]
    libraries = dict.fromkeys(entry["name"].split(":")[0] for entry in entries)
    for library in [*libraries, ""]:
        of = [entry for entry in entries if entry["name"].startswith(f"{library}:" * bool(library))]
        differ = sum(not entry["ok"] for entry in of)
        refused = sum("not compared" in entry for entry in of)
        count = f"{len(of) - refused}" + (f", {refused} refused" if refused else "")
        cells = (library or "all", count, rows_equal(of), largest(of), str(differ))
        lines.append(f"| {' | '.join(cells)} |\n")
    return lines


def compared(entries: list[Entry], rows: int) -> str:
    """Return sentences about the rows that are left out, and about the reference walk."""
    whole = sum(entry.get("library", [0, 0])[1] == rows for entry in entries)
    left = sum(entry.get("left out", [0])[0] for entry in entries)
    compiled = sum(entry.get("reference", [0, 0])[1] for entry in entries)
    return (
        f"{whole} models are compared on all {rows:,} rows. For the others, rows are left out that "
        "the model or its library refuses, or for which the library itself is wrong "
        f"({left:,} rows in all). Compiled code has the margins of the reference walk on each of "
        f"{compiled:,} rows."
    )


def files(entries: list[Entry]) -> list[str]:
    """Return a table of the files of other versions, with what those predicted."""
    lines = ["| file | rows equal |\n|---|---|\n"]
    for entry in entries:
        if entry["name"].startswith(("old: ", "files: ")):
            why = f"refused: {entry.get('not compared')}"
            cells = entry["name"].split(": ", 1)[1], rows_equal([entry]) or why
            lines.append(f"| {' | '.join(cells)} |\n")
    for number in (1, 3, 5):
        of = [entry for entry in entries if opset(entry["name"]) == number]
        lines.append(f"| ONNX, ai.onnx.ml {number} ({len(of)} models) | {rows_equal(of)} |\n")
    lines.append(
        "\nFiles of XGBoost 0.90 to 3.1 are compared with what their version predicted for their "
        "300 rows; those from before 1.3, which rounded otherwise, with what 1.7.6 made of them; "
        "those of 1.3 with DART, with what the version below does. Models of XGBoost 1.4 and of "
        "onnxmltools are real ones that lie beside the checkout. LightGBM's files are of 4.7.\n"
    )
    return lines


def opset(name: str) -> int | None:
    """Return the version of the operators of an ONNX model."""
    library, short = name.split(": ", 1)
    if library != "onnx":
        return None
    return int(short.split()[1]) if short.startswith("opset ") else 3


if __name__ == "__main__":
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "build/differential.json")
    PAGE.write_text(page_text(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
