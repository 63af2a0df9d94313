"""Reads CatBoost's categories: one-hot values, and statistics of the target ("CTRs").

takes: the parts `features_info` and `ctr_data` of a document; gives: Encoder, and for each split of
the document the column of the encoder that it tests.

A CTR is computed for the values of a combination of features that occur together. For each
combination and kind of statistic the file holds a table, with some counts for each key. Statistics
are computed from the counts in float32, as CatBoost does for every row:

    value = ((count + prior) / (total + denominator) + shift) * scale
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...forest import Array
from ...forest.encoder import ABOVE, ABOVE_OR_MISSING, CATEGORY, IS_CATEGORY, Encoder
from ..refusals import damaged, unsupported
from .document import Document, as_numbers, parse, take, take_index, take_number, take_written

KINDS = ("Borders", "Buckets", "Counter", "BinarizedTargetMeanValue")
"""The supported kinds of statistics."""
_COUNTS = ("Counter",)
_MEANS = ("BinarizedTargetMeanValue",)
_SEVERAL_TARGETS = (
    *("MultiLogloss", "MultiCrossEntropy", "MultiRMSE", "MultiRMSEWithMissingValues"),
    *("SurvivalAft", "PythonUserDefinedMultiTarget"),
)
"""Loss functions for several targets."""
_PARTS = ("cat_feature_value", "float_feature", "cat_feature_exact_value")
"""Kinds of parts of a combination, in the order in which parts enter a key (`forest.encoder`)."""
_NO_KEY = 2**64 - 1
"""Marker of an empty place in CatBoost's hash table."""


class DocumentFeatures(NamedTuple):
    """The features of a document.

    Attributes:
        floats, categories: the document's entries of numeric and of categorical features, by the
            number of the feature among those of its kind.
        statistics: the document's entry for each CTR.
        width: number of columns of a row.
        names: names of the columns, or None.
    """

    floats: dict[int, Document]
    categories: dict[int, Document]
    statistics: list[Document]
    width: int
    names: tuple[str, ...] | None


class StatisticTable(NamedTuple):
    """A table of counts, from which a statistic is computed.

    Attributes:
        keys: uint64 (K,), sorted.
        counts: float64 (K, W), the W counts of each key.
        total: the denominator of statistics of the kind "Counter", otherwise 0.
    """

    keys: Array
    counts: Array
    total: float


def refuse_ambiguous(info: Document, loss: str, features: DocumentFeatures) -> None:
    """Refuse statistics for which the document stores one table instead of several.

    The document identifies a table by features and kind. CatBoost itself has another table for each
    way of dividing the target into classes, and for each of several targets.
    """
    used = {take(about, "ctr_type", str) for about in features.statistics} - set(_COUNTS)
    losses, lists = {loss}, list[Any]()
    for name in info:
        if name.rpartition(":")[2] == "params":  # each model of a sum has its own
            params = take_written(info, name)
            losses.add(take(take(params, "loss_function", dict, {}), "type", str, ""))
            options = take(params, "cat_feature_params", dict, {})
            lists += [
                take(options, f"{kind}_ctrs", list, []) for kind in ("simple", "combinations")
            ]
            lists += take(options, "per_feature_ctrs", dict, {}).values()
    several = losses & set(_SEVERAL_TARGETS)
    if used and several:
        what = f"{min(used)} of the loss {min(several)}, of whose targets the file keeps one"
        raise unsupported("target_binarization", what, "train without target statistics")
    for listed in lists:
        ways = {(one["ctr_type"], repr(one.get("target_binarization"))) for one in listed}
        kinds = [kind for kind, _ in ways if kind in used]
        if len(set(kinds)) < len(kinds):
            what = "two ways to divide the target for one kind, of which the file keeps one"
            remedy = "train with one TargetBorderCount and TargetBorderType for each kind"
            raise unsupported("target_binarization", what, remedy)


def missing_above(feature: Document) -> bool:
    """Return whether a feature's missing value counts as above all borders."""
    treatment = take(feature, "nan_value_treatment", str, "AsIs")
    if treatment not in ("AsIs", "AsFalse", "AsTrue"):
        raise damaged("nan_value_treatment", f"{treatment!r:.40} is not known")
    return treatment == "AsTrue" and feature.get("has_nans") is True


class EncodedColumns:
    """The columns that an encoder makes, and the column that each split of the document tests."""

    def __init__(self, features: DocumentFeatures, document: Document) -> None:
        self.features = features
        floats, categories = features.floats, features.categories
        in_order = sorted(floats, key=lambda number: floats[number]["flat_feature_index"])
        self.of_float = {number: at for at, number in enumerate(in_order)}
        self.of_category = {number: at for at, number in enumerate(sorted(categories))}
        self.single = [
            (self.of_category[number], _as_hash(value))
            for number in sorted(categories)
            for value in take(categories[number], "values", list, [])
        ]
        self._of_single = {pair: len(floats) + at for at, pair in enumerate(self.single)}
        self._first_statistic = len(floats) + len(self.single)
        self._data = take(document, "ctr_data", dict, {})
        borders = [as_numbers(take(x, "borders", list), "borders") for x in features.statistics]
        self._bounds = np.append(0, np.cumsum([len(own) for own in borders])).astype(np.int64)
        self._borders = np.concatenate([np.zeros(0), *borders]).astype(np.float32)
        tested = [as_numbers(take(x, "borders", list, []), "borders") for x in floats.values()]
        if any(np.any(own[1:] < own[:-1]) for own in (*tested, *borders)):
            raise damaged("borders", "they do not ascend, and CatBoost counts those below a value")
        with np.errstate(over="ignore"):
            pairs = zip(floats, (x.astype(np.float32).tolist() for x in tested), strict=True)
        self._tests: list[tuple[int, Any]] = [(n, border) for n, own in pairs for border in own]
        self._first_split = len(self._tests) + len(self.single)
        """Number of the first split that tests a statistic."""

    def check_border(self, split: Document, feature: int, border: float) -> None:
        """Raise ModelFormatError unless `split_index` is the number of the given border.

        A split holds both; CatBoost uses the number, and ignores the border.

        Args:
            split: the split in the document.
            feature: number of the numeric feature that it tests, among the numeric ones.
            border: the border in the split.
        """
        number = take_index(split, "split_index")
        if number >= len(self._tests) or self._tests[number] != (feature, border):
            what = f"{number} is not the border {border:.9g} of feature {feature}"
            raise damaged("split_index", what)

    def find_single(self, split: Document) -> int:
        """Return the column of the encoder's matrix that a split on one category tests."""
        place = self._find_category(split)
        code = _as_hash(take(split, "value", int))
        if (place, code) not in self._of_single:
            raise damaged("value", f"no category {code} of feature {split['cat_feature_index']}")
        column = self._of_single[place, code]
        number = take_index(split, "split_index") - len(self._tests)
        if number != column - len(self.features.floats):
            raise damaged("split_index", f"{split['split_index']} is not that of category {code}")
        return column

    def find_statistic(self, split: Document) -> tuple[int, float]:
        """Return the matrix column and the border of a split that tests a statistic."""
        number = take_index(split, "split_index") - self._first_split
        if not 0 <= number < len(self._borders):
            raise damaged("split_index", f"{split['split_index']} is none of a statistic")
        border = self._borders[number]
        if np.float32(take_number(split, "border")) != border:
            what = f"{split['border']} where the statistic has {border}"
            raise damaged("border", what)
        at = int(np.searchsorted(self._bounds, number, side="right")) - 1
        return self._first_statistic + at, float(border)

    def name_all(self) -> tuple[str, ...] | None:
        """Return names of the columns that the encoder makes; None if users' columns have none."""
        names = self.features.names
        if names is None:
            return None
        flat = [x["flat_feature_index"] for _, x in sorted(self.features.categories.items())]
        own = [names[self.features.floats[n]["flat_feature_index"]] for n in self.of_float]
        single = [f"{names[flat[place]]} == #{code:08x}" for place, code in self.single]
        kinds = [take(about, "ctr_type", str) for about in self.features.statistics]
        return (*own, *single, *(f"{kind} {at}" for at, kind in enumerate(kinds)))

    def _find_category(self, holder: Document) -> int:
        number = take_index(holder, "cat_feature_index")
        if number not in self.of_category:
            raise damaged("cat_feature_index", f"no feature {number}")
        return self.of_category[number]

    def make_encoder(self) -> Encoder:
        """Return the encoder that makes the columns."""
        features, combinations, tables = self.features, list[list[Any]](), dict[str, int]()
        of_table, table, known, unknown = list[int](), list[int](), [], []
        held = list[StatisticTable]()
        for about in features.statistics:
            name = take(about, "identifier", str)
            if name not in tables:
                tables[name] = len(held)
                held.append(_read_table(take(self._data, name, dict), about))
                parts = self._read_parts(take(about, "elements", list))
                if parts not in combinations:
                    combinations.append(parts)
                of_table.append(combinations.index(parts))
            table.append(tables[name])
            values = _compute(about, held[tables[name]])
            known.append(values[:-1])
            unknown.append(values[-1])
            if parse(name.encode()) != {"identifier": about["elements"], "type": about["ctr_type"]}:
                raise damaged("identifier", f"{name!r:.120} is not that of the elements beside it")
        parts = [part for combination in combinations for part in combination]
        kind, place, value = zip(*parts, strict=True) if parts else ((), (), ())
        flat = [x["flat_feature_index"] for _, x in sorted(features.categories.items())]
        return Encoder(
            width=features.width,
            names=features.names,
            numbers=_integers(features.floats[n]["flat_feature_index"] for n in self.of_float),
            categories=_integers(flat),
            single=_integers(self.single).reshape(-1, 2),
            part_begin=_integers(np.cumsum([0, *map(len, combinations)])),
            part_kind=_integers(kind),
            part_place=_integers(place),
            part_value=np.array(value, np.float64),
            table_parts=_integers(of_table),
            table_begin=_integers(np.cumsum([0, *(len(one.keys) for one in held)])),
            keys=np.concatenate([np.zeros(0, np.uint64), *(one.keys for one in held)]),
            table=_integers(table),
            known=np.concatenate([np.zeros(0, np.float32), *known]),
            unknown=np.array(unknown, np.float32),
        )

    def _read_parts(self, elements: list[Any]) -> list[tuple[int, int, float]]:
        """Return kind, place and value (see `Encoder`) of each part of a combination.

        The parts are in the order in which they enter a key, see `_PARTS`.
        """
        found = []
        for element in elements:
            name = take(element, "combination_element", str)
            if name not in _PARTS:
                what = f"'{name:.40}' is not among those known ({', '.join(_PARTS)})"
                raise unsupported("combination_element", what, "train with one of these")
            order = _PARTS.index(name)
            if name == "float_feature":
                number = take_index(element, "float_feature_index")
                if number not in self.of_float:
                    raise damaged("float_feature_index", f"no feature {number}")
                above = missing_above(self.features.floats[number])
                kind, place = ABOVE_OR_MISSING if above else ABOVE, self.of_float[number]
                value = float(np.float32(take_number(element, "border")))
            else:
                kind, place = (CATEGORY, IS_CATEGORY)[order > 0], self._find_category(element)
                value = float(_as_hash(take(element, "value", int))) if order else 0.0
            found.append((order, (kind, place, value)))
        return [part for _, part in sorted(found, key=lambda pair: pair[0])]


def _integers(values: Any) -> Array:
    return np.array(list(values), np.int64)


def _as_hash(value: Any) -> int:
    """Return a 32-bit hash, written as a signed or unsigned number, as an unsigned one."""
    if type(value) is not int or not -(2**31) <= value < 2**32:
        raise damaged("values", f"expected a number of 32 bits, got {value!r:.40}")
    return value % 2**32


def _read_table(data: Document, about: Document) -> StatisticTable:
    """Read a table, without the empty places of CatBoost's hash table."""
    stride = take_index(data, "hash_stride", 2**16)
    entries = take(data, "hash_map", list)
    width = {**dict.fromkeys(_COUNTS, 1), **dict.fromkeys(_MEANS, 2)}.get(about.get("ctr_type", ""))
    if stride < 2 or len(entries) % stride or (width is not None and stride != 1 + width):
        raise damaged("hash_map", f"{len(entries)} entries with stride {stride}")
    try:
        keys = np.array(list(map(int, entries[::stride])), np.uint64)
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged("hash_map", f"expected keys ({error})") from None
    counts = [as_numbers(entries[at::stride], "hash_map") for at in range(1, stride)]
    used = np.flatnonzero(keys != _NO_KEY)
    order = used[np.argsort(keys[used], kind="stable")]
    keys = keys[order]
    if np.any(keys[1:] == keys[:-1]):
        raise damaged("hash_map", "a key occurs twice")
    name = "counter_denominator"  # CatBoost reads it as 32 bits
    total = float(take_index(data, name)) if name in data else 0.0
    return StatisticTable(keys, np.stack(counts, axis=1)[order], total)


def _compute(about: Document, table: StatisticTable) -> Array:
    """Compute a statistic for each key, float32 (K + 1,), the last one for unknown keys."""
    kind, border = take(about, "ctr_type", str), take_index(about, "target_border_idx")
    if kind not in KINDS:
        what = f"'{kind:.40}' is not among those known ({', '.join(KINDS)})"
        raise unsupported("ctr_type", what, "train with one of these")
    counts = np.concatenate([table.counts, np.zeros((1, table.counts.shape[1]))])
    if kind in _COUNTS:
        count, total = counts[:, 0], np.full(len(counts), table.total)
    elif kind in _MEANS:
        count, total = counts.T
    elif border >= counts.shape[1] - (kind != "Buckets"):  # two classes have one border
        raise damaged("target_border_idx", f"{border} of {counts.shape[1]} counts")
    else:
        count = counts[:, border] if kind == "Buckets" else counts[:, border + 1 :].sum(axis=1)
        total = counts.sum(axis=1)
    names = ("prior_numerator", "prior_denomerator", "shift", "scale")
    prior, denominator, shift, scale = (np.float32(take_number(about, name)) for name in names)
    with np.errstate(all="ignore"):
        ratio = (count.astype(np.float32) + prior) / (total.astype(np.float32) + denominator)
        values: Array = (ratio + shift) * scale
    return values
