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
"""The kind of an archive that holds a saved one."""

INSIDE = "predictor.tvmf"
"""The part of it that holds the predictor of leaves."""

OUT_OF_BAG = ("oob_score", "indices", "duplicates")
"""Arguments of quantile-forest for rows of the training."""


class Nearest(NamedTuple):
    """Training rows that are most often in the leaves of each row.

    Attributes:
        rows: int64 (R, k), their places among the training rows, the nearest first; of equally near
            ones the first; -1 where there are fewer.
        counts: int32 (R, k), in how many trees they share a leaf, as often as these drew them.
    """

    rows: Array
    counts: Array


def _lack(name: str, remedy: str) -> Any:
    """Return what stands for a method of Predictor that is not there."""

    def refuse(self: Any, *given: Any, **named: Any) -> NoReturn:
        """Refuse."""
        raise UnsupportedModel(f"{name}: quantile forests have no such method; {remedy}")

    return refuse


class QuantilePredictor(Predictor):
    """A compiled forest that knows the training rows of each leaf, see `build_quantiles`.

    `predict` and `predict_quantiles` equal quantile-forest's `predict`. `predict_margin`,
    `predict_per_tree` and contributions are of the averages that leaves hold, as those of a random
    forest. Not there are `update`, `rounds`, `predict_value` and `export_library`.

    Attributes:
        samples: training rows by leaf.
    """

    samples: LeafSamples

    def __init__(self, predictor: Predictor, samples: LeafSamples) -> None:
        """Become what a predictor of leaves is, and know samples as well; users call `build`."""
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
            iteration_range, which: refused, for a quantile is of all trees.
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

        Arguments but n_jobs are those of quantile-forest's `predict`, with their meaning there.

        Args:
            rows: (R, F), see `Predictor.predict`.
            quantiles: a number from 0 to 1 or several, or "mean"; None for the model's default.
            interpolation: between two training rows: "linear", "lower", "higher", "midpoint" or
                "nearest".
            weighted_quantile: whether training rows get weights, else each is as many samples as
                leaves have it; other roundings, and other ways between rows that count often.
            weighted_leaves: whether each leaf counts the same, however many samples it has.
            aggregate_leaves_first: whether samples of all trees are put together; else quantiles of
                trees are averaged.
            n_jobs: see `Predictor.predict`.
            out_of_bag: `oob_score`, `indices` and `duplicates` are refused, unless they are off.

        Returns:
            float64 (R,), or (R, Q) for several quantiles; (R, C) or (R, C, Q) for several targets.

        Raises:
            InputError: rows or an argument of the wrong kind.
            UnsupportedModel: predictions out of the bag, or weights of leaves that are averaged.

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
        """Predict the interval in which the target is with a probability, as much on either side.

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
        """Score predicted distributions by what was observed: 0 is the best, less is better.

        The continuous ranked probability score is the integral of the squared difference between
        the distribution of the samples and the step at the observed value (Gneiting and Raftery,
        2007), in the unit of the target; of a distribution at one value, the absolute error.

        Args:
            rows, n_jobs: see `predict_quantiles`.
            targets: (R,) or (R, C), what was observed.

        Returns:
            float64 of that shape, within 1e-12 of the largest target; NaN where a row reaches no
            sample.

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
            int32 (R, N), for the N training rows in their order; one that a tree drew several times
            counts as often.

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
        """Return the training rows that are most often in the same leaves, the nearest first.

        Args:
            rows, n_jobs: see `predict_quantiles`.
            k: how many, at most.

        Returns:
            Nearest: their places among the training rows, and in how many trees they are there.

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
            # the key of a row is another one for each, and less for one that is nearer or before
            keys = np.arange(n_ranks) - near.astype(np.int64) * n_ranks
            first = np.sort(np.partition(keys, width - 1, axis=1)[:, :width], axis=1)
            counts.append((-(first // n_ranks)).astype(np.int32))
            found.append(np.where(counts[-1] > 0, first % n_ranks, -1))
        return Nearest(np.concatenate(found), np.concatenate(counts))

    def _count_near(self, where: str, rows: Any, n_jobs: int | None) -> Iterator[Array]:
        """Yield parts of `proximity`."""
        if not len(self.samples.order):
            raise UnsupportedModel(
                f"{where}: a model with monotonic constraints changes the targets of training "
                "rows, so that they are not known; train it without 'monotonic_cst'"
            )
        most = max(1, MAX_NUMBERS // self.samples.values.shape[1])
        for _, leaves in self._walk(rows, n_jobs, most):
            yield self._tallies.run("proximity", leaves, n_jobs=n_jobs)[0]

    def _estimate(self, rows: Any, asked: Asked, n_jobs: int | None) -> Array:
        """Return what is asked for, (R, C, Q)."""
        parts = [np.empty((0, self.samples.n_outputs, asked.width))]
        parts += [estimate(self._tallies, x, asked, n_jobs) for _, x in self._walk(rows, n_jobs)]
        return np.concatenate(parts)

    def _walk(
        self, rows: Any, n_jobs: int | None, most: int = MAX_NUMBERS
    ) -> Iterator[tuple[slice, Array]]:
        """Yield places of some rows, at most so many, and int32 (r, T), the leaves they reach."""
        rows = to_rows(rows, self.forest)
        step = max(1, min(most, MAX_NUMBERS // len(self.samples.offsets)))
        for begin in range(0, len(rows), step):
            span = slice(begin, begin + step)
            leaves = self._leaves("apply", rows[span], n_jobs)[:, :, 0]
            yield span, np.ascontiguousarray(leaves, np.int32)

    # -- files ------------------------------------------------------------------------------------

    def _to_bytes(self) -> bytes:
        """Return what `save` writes."""
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
            InputError: the file cannot be written.

        Examples:
            >>> quantile_predictor.save("quantiles.tvmf")
        """
        saving.save(file, self._to_bytes)

    def __reduce__(self) -> tuple[Callable[[bytes], Predictor], tuple[bytes]]:
        """Say how to pickle and copy a predictor."""
        return from_bytes, (self._to_bytes(),)

    # -- what is not there ------------------------------------------------------------------------

    update = _lack("update", "build a predictor of the new model")
    rounds = _lack("rounds", "train a model of fewer trees")
    predict_value = _lack("predict_value", "use predict, or predict_margin for averages of leaves")
    export_library = _lack("export_library", "save it, and load it by Python")


def from_bytes(data: bytes) -> Predictor:
    """Return what was saved.

    Raises:
        ModelFormatError, BuildError: see `load_predictor`.
    """
    return saving.from_bytes(data, others={KIND: read_saved})


def read_saved(
    manifest: dict[str, Any], parts: dict[str, Any], where: str, recompile: bool
) -> QuantilePredictor:
    """Return what an archive of this kind holds.

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
    """Refuse arguments that ask for something out of the bag, or that nobody knows."""
    for name, value in given.items():
        if name not in OUT_OF_BAG:
            raise InputError(f"{where}: argument {name!r}: there is no such argument")
        if value is not None and value is not False:
            raise UnsupportedModel(
                f"{where}: argument {name!r}: which trees saw a row is not kept; ask "
                "quantile-forest for predictions out of the bag"
            )
