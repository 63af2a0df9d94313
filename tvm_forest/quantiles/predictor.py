"""The compiled quantile forest.

takes: BuildRequest, Compiled, LeafSamples; gives: QuantilePredictor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array
from ..predictor import saving
from ..predictor.inputs import to_rows
from ..predictor.predictor import Predictor, Range
from ..system import archive
from .estimates import MAX_NUMBERS, Asked, estimate, read_asked
from .samples import FIELDS, LeafSamples, check_samples, count_nodes, read_targets
from .tallies import Tallies

KIND = "quantile predictor"
"""The kind of archive that holds a saved QuantilePredictor."""

INSIDE = "predictor.tvmf"
"""The part of the archive that holds the predictor of leaves, itself an archive."""

OUT_OF_BAG = ("oob_score", "indices", "duplicates")
"""Arguments of quantile-forest's `predict` that concern training rows."""


class Nearest(NamedTuple):
    """The training rows that share the most leaves with each row.

    Attributes:
        rows: int64 (R, k), indices of the training rows, the nearest first, the lower index first
            among equally near ones; -1 where there are fewer than k.
        counts: int32 (R, k), in how many trees they share a leaf; a tree that drew a training row
            several times counts as often.
    """

    rows: Array
    counts: Array


def _lack(name: str, remedy: str) -> Any:
    """Return a method that refuses, with a remedy, in place of Predictor's method `name`."""

    def refuse(self: Any, *given: Any, **named: Any) -> NoReturn:
        """Raise UnsupportedModel: quantile forests have no such method."""
        raise UnsupportedModel(f"{name}: quantile forests have no such method; {remedy}")

    return refuse


class QuantilePredictor(Predictor):
    """A compiled forest with the training rows of each leaf, see `build_quantiles`.

    `predict` and `predict_quantiles` return what quantile-forest's `predict` does.
    `predict_margin`, `predict_per_tree` and contributions refer to the averages that leaves hold,
    as in a random forest. `update`, `update_leaves`, `rounds`, `predict_value` and `export_library`
    are refused.

    Attributes:
        samples: the training rows in each leaf, and their targets.
    """

    samples: LeafSamples

    def __init__(self, predictor: Predictor, samples: LeafSamples) -> None:
        """Take over a predictor's attributes, and add samples; users call `build`."""
        self._begin()
        for name, value in vars(predictor).items():
            setattr(self, name, value)
        self.samples, self._tallies = samples, Tallies(predictor._functions, samples)

    def predict(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: Range = None,
        *,
        which: Any = None,
        **as_source: Any,
    ) -> Array:
        """Predict what quantile-forest's `predict` returns: the model's default quantiles.

        Args:
            rows, n_jobs: see `Predictor.predict`.
            iteration_range, which: refused, because quantiles are computed from all trees.
            as_source: see `predict_quantiles`.

        Raises:
            InputError, UnsupportedModel: see `predict_quantiles`.

        Examples:
            >>> quantile_predictor.predict(rows[:3]).shape
            (3,)
        """
        for name, given in (("iteration_range", iteration_range), ("which", which)):
            if given is not None:
                raise UnsupportedModel(
                    f"predict: argument {name!r}: quantiles are of all trees and targets; leave it "
                    "out"
                )
        return self.predict_quantiles(rows, n_jobs=n_jobs, **as_source)

    def predict_quantiles(
        self,
        rows: Any,
        quantiles: Any = None,
        interpolation: str = "linear",
        weighted_quantile: bool = True,
        weighted_leaves: bool = False,
        aggregate_leaves_first: bool = True,
        *,
        n_jobs: int | None = None,
        **out_of_bag: Any,
    ) -> Array:
        """Predict quantiles of the target, or its mean, by the training rows in the same leaves.

        All arguments except n_jobs are those of quantile-forest's `predict`, with the same meaning.

        Args:
            rows: (R, F), see `Predictor.predict`.
            quantiles: a number from 0 to 1 or several, or "mean"; None for the model's default.
            interpolation: how to interpolate between two training rows: "linear", "lower",
                "higher", "midpoint" or "nearest".
            weighted_quantile: whether a training row that is in several leaves is one value with a
                weight; if False, it is several equal values. The two ways round and interpolate
                differently.
            weighted_leaves: whether each leaf has the same weight, however many samples it has.
            aggregate_leaves_first: whether the samples of all trees are pooled; if False, the
                quantiles of trees are averaged.
            n_jobs: see `Predictor.predict`.
            out_of_bag: `oob_score`, `indices` and `duplicates` are refused, unless they are off.

        Returns:
            float64 (R,), or (R, Q) for several quantiles; (R, C) or (R, C, Q) for several targets.

        Raises:
            InputError: rows or an argument of the wrong kind.
            UnsupportedModel: out-of-bag predictions, or `weighted_leaves` with averaged trees.

        Examples:
            >>> quantile_predictor.predict_quantiles(rows, [0.1, 0.5, 0.9]).shape
            (150, 3)
        """
        where = "predict_quantiles"
        _refuse_others(where, out_of_bag)
        quantiles = self.samples.default if quantiles is None else quantiles
        flags = (weighted_quantile, weighted_leaves, aggregate_leaves_first)
        asked = read_asked(where, quantiles, interpolation, *flags)
        found = self._estimate(rows, asked, n_jobs)
        found = found[:, :, 0] if found.shape[2] == 1 else found
        return found[:, 0] if found.shape[1] == 1 else found

    def predict_interval(self, rows: Any, level: float = 0.9, n_jobs: int | None = None) -> Array:
        """Predict the central interval that contains the target with a given probability.

        Args:
            rows, n_jobs: see `predict_quantiles`.
            level: the probability, between 0 and 1.

        Returns:
            float64 (R, 2), or (R, C, 2) for several targets: the quantiles (1 - level) / 2 and
            (1 + level) / 2.

        Raises:
            InputError: rows or an argument of the wrong kind.

        Examples:
            >>> quantile_predictor.predict_interval(rows, level=0.8).shape
            (150, 2)
        """
        is_number = isinstance(level, int | float) and not isinstance(level, bool)
        if not (is_number and 0 < level < 1):
            raise InputError(
                f"predict_interval: argument 'level': expected a number between 0 and 1, got "
                f"{level!r}"
            )
        return self.predict_quantiles(rows, [(1 - level) / 2, (1 + level) / 2], n_jobs=n_jobs)

    def crps(self, rows: Any, targets: Any, n_jobs: int | None = None) -> Array:
        """Score predicted distributions against observed targets; 0 is best, less is better.

        The continuous ranked probability score is the integral of the squared difference between
        the distribution of the samples and the step at the observed value (Gneiting and Raftery,
        2007), in the unit of the target. If all samples are equal, it is the absolute error.

        Args:
            rows, n_jobs: see `predict_quantiles`.
            targets: (R,) or (R, C), the observed targets.

        Returns:
            float64 in the shape of `targets`, with errors up to 1e-12 times the largest target; NaN
            where a row reaches no sample.

        Raises:
            InputError: rows or targets of the wrong kind or number.

        Examples:
            >>> bool((quantile_predictor.crps(rows, labels) >= 0).all())
            True
        """
        rows = to_rows(rows, self.forest)
        observed = read_targets("crps", targets, len(rows))
        if observed.shape[1] != self.samples.n_outputs:
            raise InputError(
                f"crps: argument 'targets': {observed.shape[1]} for each row, and the model has "
                f"{self.samples.n_outputs}; give what was observed of these"
            )
        scores = np.empty(observed.shape)
        for span, leaves in self._walk(rows, n_jobs):
            for output, given in enumerate(observed[span].T):
                number = (np.ascontiguousarray(given),)
                found = self._tallies.run("crps", leaves, output, number, n_jobs)[0]
                scores[span, output] = found
        return scores.reshape(np.shape(targets))

    def proximity(self, rows: Any, n_jobs: int | None = None) -> Array:
        """Count in how many trees each training row is in the leaf of each row.

        Args:
            rows, n_jobs: see `predict_quantiles`.

        Returns:
            int32 (R, N), for the N training rows in their order; a tree that drew a training row
            several times counts as often.

        Raises:
            InputError: rows of the wrong kind.
            UnsupportedModel: a model with monotonic constraints, which changes targets.

        Examples:
            >>> quantile_predictor.proximity(rows[:2]).shape
            (2, 150)
        """
        found = list(self._count_near("proximity", rows, n_jobs))
        return np.concatenate([*found, np.zeros((0, self.samples.values.shape[1]), np.int32)])

    def nearest_rows(self, rows: Any, k: int = 10, n_jobs: int | None = None) -> Nearest:
        """Return the training rows that share the most leaves with each row, the nearest first.

        Args:
            rows, n_jobs: see `predict_quantiles`.
            k: the largest number of training rows to return.

        Returns:
            Nearest: their indices among the training rows, and in how many trees they share a leaf.

        Raises:
            InputError: rows of the wrong kind, or no such k.
            UnsupportedModel: see `proximity`.

        Examples:
            >>> int(quantile_predictor.nearest_rows(rows[7:8], k=1).counts[0, 0])
            10
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(
                f"nearest_rows: argument 'k': expected a whole number from 1 on, got {k!r}"
            )
        n_ranks = self.samples.values.shape[1]
        width = min(int(k), n_ranks)
        found, counts = [np.zeros((0, width), np.int64)], [np.zeros((0, width), np.int32)]
        for near in self._count_near("nearest_rows", rows, n_jobs):
            # keys are distinct, and smaller for nearer training rows, and for a lower index
            keys = np.arange(n_ranks) - near.astype(np.int64) * n_ranks
            first = np.sort(np.partition(keys, width - 1, axis=1)[:, :width], axis=1)
            counts.append((-(first // n_ranks)).astype(np.int32))
            found.append(np.where(counts[-1] > 0, first % n_ranks, -1))
        return Nearest(np.concatenate(found), np.concatenate(counts))

    def _count_near(self, where: str, rows: Any, n_jobs: int | None) -> Iterator[Array]:
        """Yield the result of `proximity` block by block, int32 (r, N).

        Raises:
            InputError, UnsupportedModel: see `proximity`; messages begin with `where`.
        """
        if not len(self.samples.order):
            raise UnsupportedModel(
                f"{where}: a model with monotonic constraints changes the targets of training "
                "rows, so that they are not known; train it without 'monotonic_cst'"
            )
        most = max(1, MAX_NUMBERS // self.samples.values.shape[1])
        for _, leaves in self._walk(rows, n_jobs, most):
            yield self._tallies.run("proximity", leaves, n_jobs=n_jobs)[0]

    def _estimate(self, rows: Any, asked: Asked, n_jobs: int | None) -> Array:
        """Return estimates for rows, (R, C, Q)."""
        parts = [np.empty((0, self.samples.n_outputs, asked.width))]
        parts += [estimate(self._tallies, x, asked, n_jobs) for _, x in self._walk(rows, n_jobs)]
        return np.concatenate(parts)

    def _walk(
        self, rows: Any, n_jobs: int | None, most: int = MAX_NUMBERS
    ) -> Iterator[tuple[slice, Array]]:
        """Yield blocks of at most `most` rows: their slice, and their leaves, int32 (r, T)."""
        rows = to_rows(rows, self.forest)
        step = max(1, min(most, MAX_NUMBERS // len(self.samples.offsets)))
        for begin in range(0, len(rows), step):
            span = slice(begin, begin + step)
            leaves = self._leaves("apply", rows[span], n_jobs)[:, :, 0]
            yield span, np.ascontiguousarray(leaves, np.int32)

    # -- files ------------------------------------------------------------------------------------

    def _to_bytes(self) -> bytes:
        """Return the content of the file that `save` writes."""
        samples = self.samples
        manifest = {
            **saving.describe(self),
            "kind": KIND,
            "single": samples.single,
            "default": samples.default,
        }
        parts: dict[str, Any] = {f"{name}.npy": getattr(samples, name) for name in FIELDS}
        parts[INSIDE] = saving.to_bytes(self)
        return archive.pack(archive.Archive(manifest, parts))

    def save(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the predictor to a file, see `Predictor.save`.

        Raises:
            InputError, BuildError: see `Predictor.save`.

        Examples:
            >>> quantile_predictor.save("quantiles.tvmf")
        """
        saving.save(file, self._to_bytes)

    def __reduce__(self) -> tuple[Callable[[bytes], Predictor], tuple[bytes]]:
        """Support pickle and copy: return `from_bytes` and the bytes that it reads."""
        return from_bytes, (self._to_bytes(),)

    # -- methods of Predictor that are refused ----------------------------------------------------

    update = _lack("update", "build a predictor of the new model")
    update_leaves = _lack("update_leaves", "build a predictor of the new model")
    rounds = _lack("rounds", "train a model of fewer trees")
    predict_value = _lack("predict_value", "use predict, or predict_margin for averages of leaves")
    export_library = _lack("export_library", "save it, and load it by Python")


def from_bytes(data: bytes) -> Predictor:
    """Return the predictor from the content of a saved file.

    Raises:
        ModelFormatError, BuildError: see `load_predictor`.
    """
    return saving.from_bytes(data, others={KIND: read_saved})


def read_saved(
    manifest: dict[str, Any], parts: dict[str, Any], where: str, recompile: bool
) -> QuantilePredictor:
    """Return the quantile predictor that an archive holds.

    Raises:
        ModelFormatError, BuildError: see `load_predictor`.
    """
    with saving.refuse_unexpected(where):
        inner = saving.from_bytes(parts[INSIDE], where, recompile=recompile)
        kept: dict[str, Any] = {name: np.array(parts[f"{name}.npy"]) for name in FIELDS}
        samples = LeafSamples(single=manifest["single"], default=manifest["default"], **kept)
        check_samples(samples, count_nodes(inner.forest))
        return QuantilePredictor(inner, samples)


def _refuse_others(where: str, given: dict[str, Any]) -> None:
    """Refuse unknown arguments, and those that ask for out-of-bag predictions."""
    for name, value in given.items():
        if name not in OUT_OF_BAG:
            raise InputError(f"{where}: argument {name!r}: there is no such argument")
        if value is not None and value is not False:
            raise UnsupportedModel(
                f"{where}: argument {name!r}: which trees saw a row is not kept; ask "
                "quantile-forest for predictions out of the bag"
            )
