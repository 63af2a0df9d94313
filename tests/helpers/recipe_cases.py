"""Every recipe with the arguments it is tested with; as a program, writes the golden texts.

python tests/helpers/recipe_cases.py        # or: make golden
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.recipes import RECIPES

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes.txt"
PROBLEMS = {
    "100 trees": Schedule(100, depths=(6,) * 40 + (8,) * 60),
    "12 trees of each of 3 classes": Schedule(36, 3, depths=(2,) * 4 + (3,) * 8),
}


def rounds(sch: Schedule) -> int:
    return sch.trees // sch.classes


class Case(NamedTuple):
    """An example of the specification.

    Attributes:
        recipe: name in `RECIPES`.
        gpu: whether it is for GPUs only.
        keeps_order: what the specification says.
        arguments: given a schedule, those of the recipe.
    """

    recipe: str
    gpu: bool
    keeps_order: bool
    arguments: Callable[[Schedule], dict[str, Any]] = lambda sch: {}

    def schedule(self, start: Schedule) -> Schedule:
        return RECIPES[self.recipe](start, **self.arguments(start))


ORDERED = {"rows_tb": 8, "tree_threads": 4, "shared": "ordered", "tree_chunk": 8}

CASES = {
    "E1": Case("xgboost_rows", False, True),
    "E2": Case("serial_straight_lines", False, True, lambda s: {"at": rounds(s) // 3}),
    "E3": Case("gpu_straight_lines", True, False, lambda s: {"at": rounds(s) // 3 // 2 * 2}),
    "E4": Case("tahoe_direct", True, True),
    "E5": Case("tahoe_shared_data", True, False),
    "E5b": Case("tahoe_shared_data_rows", True, False),
    "E6": Case("tahoe_shared_forest", True, True, lambda s: {"fit": 5}),
    "E7": Case("tahoe_shared_partial_forest", True, False, lambda s: {"fit": 5}),
    "E8": Case("rapids_fil", True, False),
    "E9": Case("treebeard_tree_at_a_time", False, True),
    "E9b": Case("treebeard_tree_at_a_time", False, False, lambda s: {"tree_groups": 3}),
    "E10": Case("tree_parallel", False, False),
    "E11": Case("row_and_tree_parallel", False, False),
    "E12": Case("two_trees_at_a_time", False, True),
    "E12b": Case("rows_by_trees", False, True),
    "E13": Case("gpu_template", True, False),
    "E13b": Case("gpu_template", True, True, lambda s: ORDERED),
    "ranks": Case("gpu_shared_ranks", True, True, lambda s: {"rows": 64, "tree_bytes": 1 << 12}),
}
ON_CPU = [name for name, case in CASES.items() if not case.gpu]
ON_GPU = [name for name, case in CASES.items() if case.gpu]


def golden_text() -> str:
    parts = []
    for name, case in CASES.items():
        for problem, start in PROBLEMS.items():
            parts.append(f"== {name} {case.recipe}: {problem}\n{case.schedule(start)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(golden_text(), encoding="utf-8")
