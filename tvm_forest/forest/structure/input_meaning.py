"""The second part of a Forest: what the numbers in a row mean before the first test.

takes: facts about the source library and the model; gives: InputMeaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...system.process.locks import cached_property
from ...system.values import dataclass, field
from ..encoder import Encoder
from ..memberships import MembershipTable, SetCounts, count_sets, make_tables
from ..rules import CategoryRule
from .metadata import per_model


@dataclass(frozen=True, eq=False, kw_only=True)
class InputMeaning:
    """The rules for reading rows: dtype, names, missing values, categories, and refusals.

    Attributes:
        n_features: F, number of columns that walks read, membership columns included.
        category_rule: how the source library decides whether a value is in a set of categories;
            needed if a node tests for a set, or if there is a membership column.
        derived: (feature, set of categories) of each membership column. These are the last columns
            that walks read: 0 where the rule sends a row to the left, 1 where to the right.
        known_categories: by feature, the categories that count; all other values are missing.
        missing: a number that means missing, in addition to NaN.
        listed_categories: pairs of a feature and the categories that the model lists from training;
            not repeated where `category_names` or `known_categories` has them.
        category_names: by feature, the labels of its categories in the order of their codes. They
            convert a frame's columns of categories to codes; other features hold numbers. None may
            be a label in models of scikit-learn, where it is a missing value other than NaN.
        other_label: the code of all labels that are not in `category_names`; with such a code,
            labels are texts, and an empty text is missing. None if there is no such code.
        labels_are_numbers: whether labels in a frame are the numbers that the model takes, if it
            has no `category_names`.
        zero_missing: features whose values within 1e-35 of zero are missing.
        absent: value of an entry that a sparse matrix does not store: NaN for XGBoost, else 0.
        sparse_above: nonzero entries of a sparse matrix must be farther from zero than this: the
            source library treats smaller ones differently in sparse matrices and in arrays.
        in_place: whether the model is a DART estimator of XGBoost, which predicts in place, but
            rounds differently for rows that it copies into a DMatrix. Those are predicted with
            `Trees.copied_value`, and refused if that is None.
        refuses: what rows may not hold, because the source object refuses it: "nan", "inf", or
            "category", a label in a frame that is not in `category_names`. Without "category",
            such a label is missing, or has the code `other_label`.
        refuses_unseen: columns of users' rows in which unknown categories are refused, because the
            user wants that (`Forest.refuse_unseen`).
        row_dtype: dtype that rows are cast to before they are compared.
        other_dtype: dtype that arrays and lists of other dtypes than float32 and float64 are cast
            to before `row_dtype` (LightGBM does so, but not for frames); or None.
        object_dtype: dtype that Python objects in arrays and lists are cast to before `row_dtype`;
            None if the source library takes no objects.
        feature_names: names of the columns, or None.
        blank: the character that replaces a blank in these names: "_" in models of LightGBM.
        takes_by_name: whether the source object finds the columns of a frame by name, in any order
            and among others, as YDF does.
        spares_columns: whether the source object takes rows that have surplus columns on the right,
            or lack columns that no tree reads, as CatBoost does.
        ignored_columns: names of columns that the source object ignores in a frame: "qid", the
            queries of a ranker of XGBoost.
        pandas_categories: for the i-th column of categories in a frame, its labels in the order of
            their codes; empty if the model was trained without such columns.
        encoder: converts users' rows that hold categories as texts to the columns of numbers that
            all other code reads; None if users' rows hold numbers.
    """

    n_features: int = field(metadata=per_model(11))
    category_rule: CategoryRule | None = field(default=None, metadata=per_model(13))
    derived: tuple[tuple[int, tuple[int, ...]], ...] = field(default=(), metadata=per_model(14))
    known_categories: dict[int, tuple[int, ...]] = field(
        default_factory=dict, metadata=per_model(15)
    )
    missing: float | None = field(default=None, metadata=per_model(16))
    listed_categories: tuple[tuple[int, tuple[int, ...]], ...] = field(
        default=(), metadata=per_model(None)
    )
    category_names: dict[int, tuple[Any, ...]] = field(default_factory=dict, metadata=per_model(17))
    other_label: int | None = field(default=None, metadata=per_model(50, signed_if_set=True))
    labels_are_numbers: bool = field(default=False, metadata=per_model(None))
    zero_missing: tuple[int, ...] = field(default=(), metadata=per_model(18))
    absent: float = field(default=0.0, metadata=per_model(19))
    sparse_above: float = field(default=0.0, metadata=per_model(20))
    in_place: bool = field(default=False, metadata=per_model(21, signed_if_set=True))
    refuses: tuple[str, ...] = field(default=(), metadata=per_model(22))
    refuses_unseen: tuple[int, ...] = field(default=(), metadata=per_model(None))
    row_dtype: str = field(default="float32", metadata=per_model(24))
    other_dtype: str | None = field(default=None, metadata=per_model(25))
    object_dtype: str | None = field(default=None, metadata=per_model(None))
    feature_names: tuple[str, ...] | None = field(default=None, metadata=per_model(37))
    blank: str = field(default=" ", metadata=per_model(None))
    takes_by_name: bool = field(default=False, metadata=per_model(None))
    spares_columns: bool = field(default=False, metadata=per_model(None))
    ignored_columns: tuple[str, ...] = field(default=(), metadata=per_model(None))
    pandas_categories: tuple[tuple[Any, ...], ...] = field(default=(), metadata=per_model(38))

    encoder: Encoder | None = field(default=None, metadata=per_model(48, signed_if_set=True))

    @property
    def given_width(self) -> int:
        """Number of columns of the rows that users pass."""
        return self.row_width if self.encoder is None else self.encoder.width

    @property
    def given_names(self) -> tuple[str, ...] | None:
        """Names of the columns of the rows that users pass, or None."""
        return self.feature_names if self.encoder is None else self.encoder.names

    def spell(self, names: Sequence[Any]) -> list[str]:
        """Return column names in the model's spelling; unknown names are only converted to str.

        LightGBM writes blanks as "_"; XGBoost joins the levels of a name of pandas by blanks.
        """
        texts, known = [str(name) for name in names], self.given_names
        if known is None or tuple(texts) == known:
            return texts
        own = set(known)
        return [
            text if text in own else self._spell_otherwise(name, own)
            for text, name in zip(texts, names, strict=True)
        ]

    def _spell_otherwise(self, name: Any, known: set[str]) -> str:
        joined = " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
        spelled = joined.replace(" ", self.blank)
        return spelled if spelled in known else str(name)

    @property
    def row_width(self) -> int:
        """Number of columns of clean rows: F without the membership columns."""
        return self.n_features - len(self.derived)

    @cached_property
    def set_counts(self) -> list[SetCounts]:
        """Counts of the sets of categories that each feature is tested for."""
        return count_sets(self)

    @cached_property
    def membership_tables(self) -> list[MembershipTable]:
        """One table for each feature of which membership columns are made."""
        return make_tables(self)
