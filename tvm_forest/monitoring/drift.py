"""How far the rows that are predicted differ from those of a profile.

takes: how many rows reach each leaf, of those observed and of the profile; gives: Drift, and its
metrics for Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..forest import Array
from ..forest.profile import Profile
from ..system.values import dataclass

SPREAD = 0.5
"""Rows that each leaf has besides those counted, so that no share is 0."""


class Metric(NamedTuple):
    """A gauge of Prometheus.

    Attributes:
        name, help: the name and the explanation that `/metrics` shows.
        values: the value for each column by name; by "" for a gauge of the whole model.
    """

    name: str
    help: str
    values: dict[str, float]


@dataclass(frozen=True, eq=False)
class Drift:
    """What a monitor has observed lately, for T trees and F columns of the users' rows.

    Attributes:
        rows: observed rows.
        reference_rows: rows of the profile.
        psi: float64 (T,), the population stability index of each tree: the sum over leaves of
            (p - q) ln(p / q), where p is the share of the observed rows at the leaf, q that of the
            profile's rows, and half a row is added at each leaf, so that no share is 0. This and
            the next two are NaN if no row was observed, or the profile has none.
        expected_psi: float64 (T,), about what chance alone gives for so many rows and leaves.
        distance: float64 (T,), the Jensen-Shannon distance of the shares p and q, with nothing
            added, from 0 to 1.
        hops: mean number of hops of an observed row in a tree; NaN in the same cases as `psi`.
        reference_hops: mean number of hops of the profile's rows; NaN if there are none.
        missing: float64 (F,), share of missing values in each column; categories that the model
            takes for missing are among them. NaN if no row was observed.
        reference_missing: the same of the rows that the monitor was made with; None if it was made
            with a profile.
        unseen: int64 (F,), number of values that are categories which the model does not list.
        columns: names of the columns; their indices as texts if the model has no names.
    """

    rows: int
    reference_rows: int
    psi: Array
    expected_psi: Array
    distance: Array
    hops: float
    reference_hops: float
    missing: Array
    reference_missing: Array | None
    unseen: Array
    columns: tuple[str, ...]

    @property
    def mean_psi(self) -> float:
        """Mean of `psi` over the trees; 0 without trees."""
        return float(self.psi.mean()) if len(self.psi) else 0.0

    @property
    def mean_distance(self) -> float:
        """Mean of `distance` over the trees; 0 without trees."""
        return float(self.distance.mean()) if len(self.distance) else 0.0

    def __repr__(self) -> str:
        expected = float(self.expected_psi.mean()) if len(self.psi) else 0.0
        return (
            f"<Drift of {self.rows} rows: PSI {self.mean_psi:.3f} (by chance {expected:.3f}), "
            f"Jensen-Shannon distance {self.mean_distance:.3f}, {int(self.unseen.sum())} unseen "
            "categories>"
        )

    def metrics(self) -> Iterator[Metric]:
        """Yield gauges; those with a value for each column leave out columns of value 0 or NaN."""
        expected = float(self.expected_psi.mean()) if len(self.psi) else 0.0
        for name, text, value in (
            ("observed_rows", "Rows observed lately.", float(self.rows)),
            ("drift_psi", "Population stability index, mean of all trees.", self.mean_psi),
            ("drift_psi_by_chance", "The index that chance alone gives.", expected),
            ("drift_distance", "Jensen-Shannon distance, mean of all trees.", self.mean_distance),
            ("path_hops", "Mean hops of a row in a tree.", self.hops),
            ("reference_path_hops", "Those of the profile.", self.reference_hops),
        ):
            yield Metric(f"tvm_forest_{name}", text, {"": value})
        for name, text, values in (
            ("missing_share", "Share of missing values of a column.", self.missing),
            (
                "unseen_categories",
                "Values of categories that the model does not list.",
                self.unseen,
            ),
        ):
            given = zip(self.columns, values.tolist(), strict=True)
            yield Metric(f"tvm_forest_{name}", text, {x: float(y) for x, y in given if y > 0})

    def to_prometheus(self) -> str:
        """Return the metrics as text, in Prometheus's format."""
        lines = []
        for name, text, values in self.metrics():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            for column, value in values.items():
                of = f'{{column="{_escape(column)}"}}' if column else ""
                lines.append(f"{name}{of} {str(value).replace('nan', 'NaN')}")
        return "\n".join([*lines, ""])


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Distances(NamedTuple):
    """The result of `compare_leaves`, with attributes as in `Drift`."""

    psi: Array
    expected_psi: Array
    distance: Array
    hops: float


def compare_leaves(profile: Profile, hits: Array, rows: int) -> Distances:
    """Compare the shares of rows at each leaf with those of a profile.

    Args:
        profile: the profile, which has L leaves.
        hits: (L,), how many of the rows reach each leaf.
        rows: number of rows.
    """
    begin, leaves = profile.leaf_offset[:-1], profile.leaf_counts
    if not rows or not profile.rows or not len(leaves):
        nothing = np.full(len(leaves), np.nan)
        return Distances(nothing, nothing, nothing, np.nan)

    def add(values: Array) -> Array:
        return np.add.reduceat(values, begin)

    p, q = (
        (x + SPREAD) / np.repeat(n + SPREAD * leaves, leaves)
        for x, n in ((hits, rows), (profile.hits, profile.rows))
    )
    psi = add((p - q) * np.log(p / q))
    p, q = hits / rows, profile.hits / profile.rows
    middle = np.maximum((p + q) / 2, np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        halves = [np.where(x > 0, x * np.log2(x / middle), 0) / 2 for x in (p, q)]
    distance = np.sqrt(np.clip(add(halves[0] + halves[1]), 0, 1))
    expected = (leaves - 1) * (1 / rows + 1 / profile.rows)
    return Distances(psi, expected, distance, count_hops(profile, hits, rows))


def count_hops(profile: Profile, hits: Array, rows: int) -> float:
    """Return the mean number of hops of a row in a tree; NaN without rows or trees.

    Args:
        profile: the depths of leaves, and the number of trees.
        hits: (L,), how many of the rows reach each leaf.
        rows: number of rows.
    """
    paths = rows * profile.n_trees
    return float(hits @ np.maximum(profile.depths, 0)) / paths if paths else float("nan")
