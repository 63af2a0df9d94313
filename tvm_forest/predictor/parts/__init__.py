"""Predictors of parts of a model: of some rounds, of one output for each row.

takes: Predictor, a range of rounds or numbers of outputs; gives: Predictor, values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...forest import Array
from ...inputs.checks import is_copied
from ...late import import_late
from ...process.locks import cached_property
from ...threads import check_n_jobs
from .rounds import columns_of_rounds, read_range

if TYPE_CHECKING:
    from ..predictor import Predictor
    from . import one_of_several
else:
    one_of_several = import_late("tvm_forest.predictor.parts.one_of_several")


class PartMethods:
    """What a Predictor does with parts of its model."""

    def rounds(self: Any, begin: int = 0, end: int = 0) -> Predictor:
        """Return the predictor of the rounds `begin` to `end - 1`; the base score stays.

        A round of XGBoost holds all its parallel trees and classes, a round of LightGBM one tree of
        each class. Other models have no rounds by name: theirs are one tree of each class, too.
        Sums are divided by the trees of the range where the model averages.

        Nothing is compiled anew: the first call for a range copies the arrays of the model, in
        which the trees of other rounds add nothing. Only models that average, or whose leaf vectors
        are numbered, are compiled for each range. A range that ends behind the best round of a
        model that stopped early compiles the model with all of its rounds once. The latest
        `rounds.MAX_PARTS` are kept, and not saved.

        Args:
            begin: first round.
            end: the one after the last; 0 for the end of the model.

        Returns:
            Predictor: this one if the range is the whole model.

        Raises:
            InputError: the range is beyond the model, or lies behind the best round of a saved
                predictor.
            UnsupportedModel: isolation forests, whose scores are of all trees.

        Examples:
            >>> predictor.rounds(0, 2)
            <Predictor of xgboost multi:softprob: 6 trees, 4 features, target llvm>
        """
        now = self._present or self
        part = now._rounds.find(now, begin, end)
        return self if part is now else part

    def _predict_one_of(
        self: Any, rows: Any, which: Any, n_jobs: int | None, iteration_range: Any
    ) -> Array:
        """Predict by one output for each row, on one thread whatever `n_jobs` says."""
        if n_jobs is not None:
            check_n_jobs("predict", n_jobs)
        return self._for_rows(rows)._part(iteration_range)._one_of_several.predict(rows, which)

    @cached_property
    def _one_of_several(self: Any) -> one_of_several.OneOfSeveral:
        """What computes one output for each row."""
        return one_of_several.OneOfSeveral(self._functions)

    def _columns_of(self: Any, iteration_range: Any) -> Array:
        """Return the rows of `columns` for the trees of a range of rounds."""
        return columns_of_rounds(self, *read_range(self.forest, iteration_range))

    def _reach(self: Any, iteration_range: Any) -> Predictor:
        """Return the predictor that has the rounds of a range, which may be behind the best one."""
        return self._rounds.reach(self, read_range(self.forest, iteration_range)[1])

    def _for_rows(self: Any, rows: Any) -> Predictor:
        """Return the predictor of rows of such a kind, see `Forest.for_copied_rows`."""
        if self.forest.copied_value is None or not is_copied(rows):
            return self
        return self._rounds.find_other(self, "for_copied_rows")

    def _part(self: Any, iteration_range: Any) -> Predictor:
        """Return the predictor of a range of rounds."""
        span = read_range(self.forest, iteration_range)
        return self if span == (0, 0) else self.rounds(*span)
