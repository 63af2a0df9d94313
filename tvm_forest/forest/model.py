"""The model: an immutable structure of arrays that defines a forest completely.

takes: arrays; gives: Forest, the high-level IR of the compiler and the oracle of its tests.

Shapes use R rows, F features, T trees, N nodes of all trees together, C outputs, W values a leaf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import ModelFormatError
from ..system.process.locks import cached_property
from ..system.values import AsksOnce, dataclass, field, replace
from . import reference, unseen
from .c_functions import NumberFunction, apply_numpy_function
from .memberships import add_columns, mark_missing
from .rules import Array, Output
from .structure import invariants
from .structure.facts import ShownAsTable
from .structure.input_meaning import InputMeaning
from .structure.metadata import Unit, per_model, read_roles
from .structure.output_meaning import OutputMeaning
from .structure.trees import Trees


@dataclass(frozen=True, eq=False, kw_only=True)
class Forest(Trees, InputMeaning, OutputMeaning, ShownAsTable, AsksOnce):
    """A decision forest with everything that decides the bits of its predictions.

    Its fields are those of three base classes, which describe them: `Trees`, the nodes with their
    tests, links and leaves; `InputMeaning`, what the numbers in a row mean before the first test;
    `OutputMeaning`, how leaf values become margins, values and labels. All fields are attributes of
    the forest, and keywords of its constructor.

    Attributes:
        source: library and objective, for messages, e.g. "xgboost binary:logistic".

    Raises:
        ModelFormatError: the fields contradict each other; the message names the first that does.
    """

    source: str = field(default="", metadata=per_model(45))

    def __post_init__(self) -> None:
        for name in ROLES:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                frozen = np.ascontiguousarray(value).view()
                frozen.flags.writeable = False
                object.__setattr__(self, name, frozen)
        problem = invariants.find_problem(self)
        if problem is not None:
            raise ModelFormatError(f"forest: {problem}; the model is damaged")

    def __repr__(self) -> str:
        sizes = f"{self.n_trees} trees, {self.n_nodes} nodes, {self.row_width} columns"
        return f"<Forest of {self.source or 'no library'}: {sizes}, outputs: {self.n_outputs}>"

    def arrays_per(self, unit: Unit) -> dict[str, Array]:
        """Return the arrays, by field, that have an entry for each node or for each tree."""
        values = {name: getattr(self, name) for name, role in ROLES.items() if role.unit == unit}
        return {name: value for name, value in values.items() if value is not None}

    @cached_property
    def signature(self) -> str:
        """Hex digest of everything that decides a prediction; equal for equal models."""
        return self.digest(SIGNED)

    @cached_property
    def identity(self) -> str:
        """Hex digest of all fields, also of those that decide no prediction."""
        others = self.digest(x for x in ROLES if x not in SIGNED)
        return hashlib.sha256(f"{self.signature} {others}".encode()).hexdigest()

    def digest(self, names: Iterable[str]) -> str:
        """Return the hex digest of the fields with these names."""
        digest = hashlib.sha256()
        for name in names:
            value = getattr(self, name)
            if ROLES[name].signed_if_set and _is_default(value, ROLES[name].default):
                continue
            digest.update(name.encode())
            if isinstance(value, np.ndarray) and value.dtype.hasobject:
                value = value.tolist()  # labels: the bytes of the array are mere pointers
            if isinstance(value, Forest):
                value = value.identity
            if isinstance(value, np.ndarray):
                digest.update(str((value.dtype.str, value.shape)).encode())
                digest.update(value.reshape(-1).view(np.uint8).data)
            else:
                digest.update(repr(value).encode())
        return digest.hexdigest()

    # -- what follows from several parts ----------------------------------------------------------

    @property
    def library(self) -> str:
        """Name of the library that trained the model; rows are read by its rules.

        For several models that were joined (`rewrites.stacking`), their common library.
        """
        return self.source.rpartition(" models of ")[2].partition(" ")[0]

    @property
    def round_size(self) -> int:
        """Number of trees that add to every output once: C, or 1 with leaf vectors."""
        return self.n_outputs // self.leaf_value.shape[1]

    @property
    def base_dtype(self) -> str:
        """Dtype in which the base score is added."""
        if self.base_first:
            return self.sum_dtype
        return str(np.result_type(self.sum_dtype, self.base_score.dtype))

    @cached_property
    def trees_of_class(self) -> Array:
        """Int64 (C,), the number of trees of the source model that add to each output."""
        known = self.tree_class[self.tree_id >= 0]
        return np.bincount(known[known >= 0], minlength=self.n_outputs) + np.sum(known < 0)

    @cached_property
    def searches(self) -> int:
        """Number of binary searches that turn a row into ranks.

        One for each feature and default side that is compared with thresholds, and one for each
        feature of which membership columns are made.
        """
        compared = np.searchsorted(self.distinct_tests.keys, 2 * self.row_width)
        return int(compared) + len(self.set_counts)

    # -- rows -------------------------------------------------------------------------------------

    def refuse_unseen(self, columns: bool | Sequence[str | int] = True) -> Forest:
        """Return a copy of the model that refuses rows with categories that it does not know.

        By default such categories are treated as in the source library. A model knows the
        categories that it lists from training: XGBoost with names and scikit-learn list all; YDF
        leaves out rare ones, which it merges; LightGBM lists those of at least three rows. A
        missing value is never refused.

        Args:
            columns: names or numbers of the columns to check; True for all that are tested for
                categories, or of which the model lists any, False for none.

        Raises:
            InputError: no such column.
            UnsupportedModel: a column whose categories the model does not list, such as codes in a
                model of XGBoost, or one-hot categories of CatBoost.
        """
        return replace(self, refuses_unseen=unseen.choose_columns(self, columns))

    @property
    def finite_columns(self) -> tuple[int, ...]:
        """Columns in which the source object refuses infinities: scikit-learn's of categories."""
        is_encoded = self.source.startswith("scikit-learn HistGradientBoosting")
        return tuple(self.known_by_column) if is_encoded else ()

    @property
    def looks_at_values(self) -> bool:
        """Whether the values of rows must be checked, because some are refused."""
        return bool(self.refuses or self.refuses_unseen or self.finite_columns)

    @cached_property
    def known_by_column(self) -> dict[int, Array]:
        """The known categories, see `refuse_unseen`, by column of the users' rows."""
        return unseen.list_by_column(self)

    @cached_property
    def read_columns(self) -> frozenset[int]:
        """The columns of users' rows that affect predictions, or whose categories are checked."""
        tested = frozenset(self.feature[self.feature >= 0].tolist())
        read = tested if self.encoder is None else self.encoder.list_read(tested)
        return frozenset(read).union(self.refuses_unseen)

    @cached_property
    def compared_categories(self) -> dict[int, tuple[int, ...]]:
        """Known categories of features that nodes or linear leaves also use as numbers."""
        numbers = [x for x in (self.feature, self.term_feature) if x is not None]
        return {k: x for k, x in self.known_categories.items() if any(k in n for n in numbers)}

    @cached_property
    def for_copied_rows(self) -> Forest:
        """The variant of this forest for rows that XGBoost's estimator copies into a DMatrix.

        The estimator rounds leaf values differently then. Most forests have no such variant, and
        return themselves.
        """
        if self.copied_value is None:
            return self
        return replace(self, leaf_value=self.copied_value, copied_value=None, in_place=False)

    @property
    def needs_cleaning(self) -> bool:
        """Whether `clean_rows` may change rows."""
        return self.missing is not None or bool(self.zero_missing or self.compared_categories)

    @property
    def needs_preparation(self) -> bool:
        """Whether `prepare_rows` may change rows."""
        return self.needs_cleaning or bool(self.known_categories or self.derived)

    def clean_rows(self, rows: Array) -> Array:
        """Return rows for layouts with a row code: NaN replaces all other missing values.

        Such layouts handle sets of categories, and known categories, themselves.

        Args:
            rows: (R, row_width) in `row_dtype`; left as they are.

        Returns:
            (R, row_width), the same array if there is nothing to do.
        """
        return mark_missing(self, rows, self.compared_categories)

    def prepare_rows(self, rows: Array) -> Array:
        """Return rows for walks: NaN replaces all other missing values; membership columns follow.

        Args:
            rows: (R, row_width) in `row_dtype`; left as they are.

        Returns:
            (R, F), the same array if there is nothing to do.
        """
        return add_columns(self, mark_missing(self, rows, self.known_categories))

    # -- reference --------------------------------------------------------------------------------

    def reference_nodes(self, rows: Array) -> Array:
        """Walk every row through every tree, one level at a time.

        Args:
            rows: (R, row_width), cast to `row_dtype` first.

        Returns:
            int64 (R, T), the leaf reached, as an index into the node arrays.
        """
        return reference.walk_trees(self, reference.cast_rows(self, rows))

    def predict_reference(self, rows: Array, output: Output = "margin") -> Array:
        """Predict with numpy, slowly and simply: compiled code must give the same bits.

        Args:
            rows: (R, row_width) numbers.
            output: "margin" (R, C); "value" (R, C), the margins after the link, whose last bits
                depend on numpy's `exp`; "apply" (R, T), source numbers of the leaves;
                "per_tree" (R, T), leaf values, or (R, T, C) if leaves hold vectors.
        """
        return reference.predict(self, rows, output)

    def values_of(self, margin: Array, call: NumberFunction = apply_numpy_function) -> Array:
        """Return the values (R, C) of margins (R, C): rounded to `value_dtype`, then linked."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            margin = margin.astype(self.value_dtype or self.sum_dtype)
            return reference.apply_link(self.link, margin, self.link_scale, self.targets, call)


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a field's value, which may be an array, is its default."""
    return value is default or (type(value) is type(default) and bool(value == default))


ROLES = read_roles(Forest)
SIGNED: list[Any] = sorted(
    (name for name, role in ROLES.items() if role.place is not None),
    key=lambda name: ROLES[name].place or 0,
)
"""The fields that decide a prediction, in the order in which they enter the signature."""
