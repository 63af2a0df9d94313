"""Predictors of parts of a model: of some rounds, or of one output per row.

takes: Predictor, a range of rounds or numbers of outputs; gives: Predictor, values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...forest import Array
from ...runtime.threads import check_n_jobs
from ...system.late import import_late
from ...system.process.locks import cached_property
from ..inputs.checks import is_copied
from .rounds import columns_of_rounds, read_range

if TYPE_CHECKING:
    from ..predictor import Predictor
    from . import one_of_several
else:
    one_of_several = import_late("tvm_forest.predictor.parts.one_of_several")


class PartMethods:
    """The methods of a Predictor that predict by parts of its model."""

    def rounds(self: Any, begin: int = 0, end: int = 0) -> Predictor:
        """Return a predictor of the rounds `begin` to `end - 1`; the base score is kept.

        A round of XGBoost has all its parallel trees and classes, a round of LightGBM one tree per
        class. In other models, too, a round is one tree per class. Averages are over the trees of
        the range.

        Nothing is compiled: the first call for a range copies the arrays of the model and zeroes
        the trees of other rounds. Only models that average, or have numbered leaf vectors, are
        compiled for each range. A range beyond the best round of a model that stopped early
        compiles the model with all rounds once. The latest `rounds.MAX_PARTS` predictors are kept,
        but not saved.

        Args:
            begin: first round, counted from 0.
            end: the round after the last; 0 for the end of the model.

        Returns:
            Predictor: this one if the range is the whole model.

        Raises:
            InputError: not two whole numbers, begin > end, or a range beyond the model or beyond
                the best round of a saved predictor.
            UnsupportedModel: only some rounds of an isolation forest, whose scores need all trees.

        Examples:
            >>> predictor.rounds(0, 2)
            <Predictor of xgboost multi:softprob: 6 trees, 4 features, target llvm>
        """
        now = self._present or self
        part = now._rounds.find(now, begin, end)
        if part is now:
            return self
        part._is_part = True
        return part

    def _predict_one_of(
        self: Any, rows: Any, which: Any, n_jobs: int | None, iteration_range: Any, *result: int
    ) -> Array:
        """Predict one output per row, on one thread whatever `n_jobs` is.

        `result` is VALUE or MARGIN; without it, values or labels as `predict` gives them.
        """
        if n_jobs is not None:
            check_n_jobs("predict", n_jobs)
        part: Any = self._for_rows(rows)._part(iteration_range)
        found: Array = part._one_of_several.predict(rows, which, *result)
        return found

    @cached_property
    def _one_of_several(self: Any) -> one_of_several.OneOfSeveral:
        """The predictor of one output per row, made on first use."""
        return one_of_several.OneOfSeveral(self._functions)

    def _columns_of(self: Any, iteration_range: Any) -> Array:
        """Return the columns, (t, W), of a range's trees in results, see `columns_of_rounds`."""
        return columns_of_rounds(self, *read_range(self.forest, iteration_range))

    def _reach(self: Any, iteration_range: Any) -> Predictor:
        """Return this predictor, or that of all rounds if a range ends beyond the best round."""
        return self._rounds.reach(self, read_range(self.forest, iteration_range)[1])

    def _for_rows(self: Any, rows: Any) -> Predictor:
        """Return the predictor for rows: this one, or another if XGBoost would copy them first.

        The other is that of `Forest.for_copied_rows`.
        """
        if self.forest.copied_value is None or not is_copied(rows):
            return self
        return self._rounds.find_other(self, "for_copied_rows")

    def _part(self: Any, iteration_range: Any) -> Predictor:
        """Return the predictor of a range of rounds, this one for all; see `rounds`."""
        span = read_range(self.forest, iteration_range)
        return self if span == (0, 0) else self.rounds(*span)
