"""Which schedules are chosen for some models; as a program, writes the golden text.

python tests/helpers/chosen_schedules.py        # or: make golden
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from forests import drawn_forest
from tvm_forest.search.heuristic import default_schedules
from tvm_forest.search.measuring.drawn_forests import Shape, draw_forest
from tvm_forest.target import parse_target

GOLDEN = Path(__file__).parents[1] / "golden" / "chosen_schedules.txt"
MODELS = {
    "100 trees of depth 6": lambda: draw_forest(Shape(100, 6, 30)),
    "300 trees of depth 8": lambda: draw_forest(Shape(300, 8, 28, 900)),
    "float64, lopsided": lambda: draw_forest(Shape(100, 8, 30, lopsided=True, dtype="float64")),
    "leaf vectors": lambda: draw_forest(Shape(40, 7, 16, outputs=3)),
    "three classes": lambda: drawn_forest(60, 7, n_features=20, base=(0.0, 0.0, 0.0)),
    "deep": lambda: drawn_forest(20, 14, seed=3, n_features=300),
    "wide": lambda: draw_forest(Shape(100, 8, 2000, 60)),
    "stumps": lambda: drawn_forest(200, 1, n_features=6, dtype="float64"),
}
CPUS = ("znver4", "cascadelake", "x86-64-v3", "neoverse-v1")


def golden_text() -> str:
    """Return a line for each schedule."""
    return "".join(f"{line}\n" for line in _list_lines())


def _list_lines() -> Iterator[str]:
    for cpu in CPUS:
        options = {"mtriple": "aarch64-linux-gnu"} if cpu.startswith("neoverse") else {}
        target = replace(parse_target({"kind": "llvm", "mcpu": cpu, **options}), cores=4)
        for name, make in MODELS.items():
            for batch, sch in default_schedules(make(), target).items():
                steps = (" ".join(map(str, (x.do, *x.arguments.values()))) for x in sch.steps)
                yield f"{cpu}, {name}, {batch}: {'; '.join(steps)}"


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")
