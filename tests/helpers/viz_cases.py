"""Pictures that are kept as texts; as a program, writes the golden texts and those of the docs.

python tests/helpers/viz_cases.py        # or: make golden
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import tvm_forest
from forests import Split, forest_of
from tvm_forest import viz
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule

GOLDEN = Path(__file__).parents[1] / "golden" / "viz.txt"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "layouts.md"
MARKED = re.compile(r"(<!-- picture: (.+?) -->\n\n```text\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
NAMES = ("age", "income", "visits")


def with_hits(forest: Forest, *hits: int) -> Forest:
    """Give the leaves these hits, in the order of their nodes."""
    all_hits = np.zeros(forest.n_nodes, np.int64)
    all_hits[forest.is_leaf] = hits
    return replace(forest, hits=all_hits)


LOPSIDED = Split(0, 39.5, Split(1, 12000, 0.1, Split(2, 2.5, 0.2, 0.3, True)), 0.4)
STUMP = Split(1, 900, -1.0, 1.0)
ONE = with_hits(forest_of([LOPSIDED], feature_names=NAMES), 60, 33, 5, 2)
TWO = forest_of([LOPSIDED, STUMP], feature_names=NAMES)
WIDE = Split(0, 0.5, Split(1, 1.5, 1, 2), Split(2, 2.5, Split(0, 3.5, 3, Split(1, 4.5, 4, 5)), 6))
THREE = forest_of([LOPSIDED, WIDE, -7.25], base=(0.0,))

Change = Callable[[Schedule], Schedule]


def tree_after(forest: Forest, change: Change, tree: int = 0) -> str:
    sch = change(tvm_forest.new_schedule(forest))
    return str(viz.tree(tvm_forest.rewrite(forest, sch), tree))


def layout(forest: Forest, name: str, tiles: int = 1) -> str:
    sch = tvm_forest.new_schedule(forest).represent_as(name)
    return str(viz.layout(forest, sch if tiles == 1 else sch.tile_nodes(tiles), most=40))


def page_pictures() -> dict[str, str]:
    plain = (
        "array",
        "sparse",
        "packed",
        "ranked",
        "banked",
        "levels",
        "octets",
        "bitsliced",
        "pieces",
    )
    tiled = ("array", "sparse", "sparse_peeled")
    return {
        "tree": str(viz.tree(ONE)),
        "tiles": tree_after(ONE, lambda sch: sch.tile_nodes(2)),
        **{name: layout(ONE, name) for name in plain},
        "reorg": layout(TWO, "reorg"),
        **{f"{name} of tiles": layout(ONE, name, 2) for name in tiled},
    }


def page_text(page: str) -> str:
    """Put today's pictures into the page, each behind its mark."""
    pictures = page_pictures()
    return MARKED.sub(lambda found: f"{found[1]}{pictures[found[2]]}\n", page)


def golden_text() -> str:
    pictures = {f"tree {tree}": str(viz.tree(THREE, tree)) for tree in range(3)}
    pictures["tree 1, tiles of 3"] = tree_after(THREE, lambda sch: sch.tile_nodes(3), 1)
    pictures["tree 0, padded"] = tree_after(ONE, lambda sch: sch.pad_trees())
    names = ("array", "sparse", "packed", "ranked", "levels", "reorg", "bitsliced")
    pictures |= {name: layout(THREE, name) for name in names}
    pictures |= {f"{name}, tiles of 3": layout(THREE, name, 3) for name in ("array", "sparse")}
    return "\n".join(f"== {name}\n{picture}\n" for name, picture in pictures.items())


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
