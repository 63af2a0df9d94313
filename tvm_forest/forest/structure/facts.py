"""Facts of a model for people: the table of `tvm-forest info`, and of notebooks.

takes: Forest, Predictor; gives: texts by name, HTML.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class ShownAsTable:
    """Base of Forest and Predictor, which a notebook shows as a table of facts."""

    def _repr_html_(self) -> str:
        from html import escape  # most processes show no tables

        facts = describe(getattr(self, "forest", self))
        schedules = getattr(self, "schedules", {}).items()
        facts |= {f"from {smallest} rows on": str(sch) for smallest, sch in schedules}
        cells = ((escape(name), escape(text)) for name, text in facts.items())
        rows = (f"<tr><th>{name}</th><td><pre>{text}</pre></td></tr>" for name, text in cells)
        return f"<table><caption>{escape(repr(self))}</caption>{''.join(rows)}</table>"


def describe(forest: Any) -> dict[str, str]:
    """Return facts of a model for people, as texts by name, such as {"trees": "100"}."""
    depths = forest.depths
    inner = ~forest.is_leaf
    used = np.unique(forest.feature[inner]).size
    missing = int(np.count_nonzero(forest.default_left & inner))
    leaves = int(forest.is_leaf.sum())
    span = f"{depths.min()} to {depths.max()}, mean {depths.mean():.1f}" if depths.size else "-"
    return {
        "model": forest.source,
        "features": _count_features(forest, used),
        "outputs": str(forest.n_outputs),
        "rounds": str(forest.n_rounds),
        "trees": str(forest.n_trees),
        "depth": span,
        "nodes": f"{forest.n_nodes}, of which {leaves} are leaves",
        "distinct thresholds": str(len(forest.tests)),
        "missing to the left": f"{missing} nodes",
        "comparison": f"{forest.threshold.dtype} {forest.comparison}",
        "link": forest.link,
        "base score": ", ".join(f"{x:.9g}" for x in forest.base_score[:4])
        + (", ..." if forest.n_outputs > 4 else ""),
    }


def _count_features(forest: Any, used: int) -> str:
    if forest.encoder is None:
        return f"{forest.row_width}, of which {used} are tested"
    own = f"{forest.given_width}, {len(forest.encoder.categories)} of categories"
    return f"{own}, encoded in {forest.row_width} columns, of which {used} are tested"
