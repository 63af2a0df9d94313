"""Damaged files: sound ones with bytes or values changed at random, and what may become of them.

`FILES` maps a kind to the sound files, to what damages one of them, and to what reads the result
and compares it with the library that the format is of.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm as lgb
import numpy as np
import onnx
import onnxruntime
import treelite
import xgboost as xgb

import _path  # noqa: F401 (what tests share)
import lightgbm_models
import models
import onnx_models
import treelite_models
import tvm_forest
import xgboost_models
from forests import Split, forest_of
from tvm_forest.errors import BuildError, ModelFormatError, ScheduleError, UnsupportedModel
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.profile import Profile
from tvm_forest.frontends.xgboost import ubjson
from tvm_forest.predictor.saving import load_predictor
from tvm_forest.schedule_prims import Schedule
from tvm_forest.system import archive

OLD = Path(__file__).resolve().parents[1] / "tests" / "data"
N_ROWS, MOST_FEATURES, ROUNDS = 20, 500, 3
COMPILED = 1500
"""One model is compiled in so many that we take."""
NUMBERS = [0, 1, -1, 2, 3, 7, 31, 127, 128, 255, 256, 65535, 10**9, 2**31 - 1, 2**31, -(2**31)]
NUMBERS += [2**32 - 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**40]
FLOATS = [0.5, -0.0, math.nan, math.inf, -math.inf, 1e-40, 1e-35, 3.5e38, 1e308, -1e308, 1.5]
OTHERS = [None, True, False, "", "x", "nan", "1e9", "-1", "[1,2]", [], {}, [[]], [1], {"a": 1}]
Phase = Callable[[str], None]


# -- bytes ----------------------------------------------------------------------------------------


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, flip, splice, insert or swap bytes, once to three times."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice((_cut, _flipped, _flipped, _flipped, _overwritten, _inserted, _swapped))(
            data, rng
        )
    return data


def _place(data: bytes, rng: random.Random) -> int:
    """Anywhere, but often near the beginning, where the header is."""
    size = len(data) if rng.random() < 0.7 else min(len(data), 400)
    return rng.randrange(size + 1)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _flipped(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        found[min(_place(data, rng), len(data) - 1)] ^= 1 << rng.randrange(8)
    return bytes(found)


def _overwritten(data: bytes, rng: random.Random) -> bytes:
    at, size = _place(data, rng), rng.choice((1, 2, 4, 8))
    return (
        data[:at] + rng.choice((b"\0", b"\xff", b"9", b"-", b"\n", b"[")) * size + data[at + size :]
    )


def _inserted(data: bytes, rng: random.Random) -> bytes:
    at, source = _place(data, rng), _place(data, rng)
    return data[:at] + data[source : source + rng.randrange(64)] + data[at:]


def _swapped(data: bytes, rng: random.Random) -> bytes:
    a, b, c = sorted(_place(data, rng) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


# -- values ---------------------------------------------------------------------------------------


def odd_value(value: Any, rng: random.Random) -> Any:
    """Another value in the place of one, mostly of the same kind."""
    if isinstance(value, str) and rng.random() < 0.7:
        return str(odd_number(rng)) if re.fullmatch(r"[-\d.eE+\[\]]+", value) else value[1:] + "x"
    if isinstance(value, bool) or value is None or rng.random() < 0.12:
        return rng.choice([*OTHERS, *NUMBERS, *FLOATS])
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value, ~value, value * 2, rng.randrange(40)])
    if isinstance(value, float) and rng.random() < 0.6:
        return rng.choice([-value, value * 2, value + 1e-7, float(np.float32(value)), -1.0])
    return odd_number(rng)


def odd_number(rng: random.Random) -> Any:
    return rng.choice(rng.choice((NUMBERS, FLOATS)))


def damaged_values(root: Any, rng: random.Random) -> Any:
    """Change a value, a length or a key somewhere in dicts and lists, in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holder, key = None, None
        at = root
        while isinstance(at, dict | list) and at and (holder is None or rng.random() < 0.96):
            keys = sorted(at) if isinstance(at, dict) else range(len(at))
            holder, key = at, rng.choice(keys)
            at = at[key]
        if holder is not None:
            _damage(holder, key, rng)
    return root


def _damage(holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    if isinstance(value, list) and value and rng.random() < 0.5:
        holder[key] = rng.choice(
            (value[:-1], value[1:], [*value, value[0]], value * 2, value[::-1], value[:1] * 3)
        )
    elif rng.random() < 0.05:
        del holder[key]
    elif isinstance(holder, list) and rng.random() < 0.1:
        other = rng.randrange(len(holder))
        holder[key], holder[other] = holder[other], value
    else:
        holder[key] = odd_value(value, rng)


def damaged_json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(damaged_values(_document(data, json.loads), rng)).encode()


def _document(data: bytes, loads: Callable[[bytes], Any]) -> Any:
    """What a sound file says, to be changed."""
    return pickle.loads(_pickled(data, loads))


@lru_cache
def _pickled(data: bytes, loads: Callable[[bytes], Any]) -> bytes:
    return pickle.dumps(loads(data))


_MARKERS = dict.fromkeys(
    "base_weights loss_changes split_conditions sum_hessian leaf_weights".split(), "d"
)
_MARKERS |= dict.fromkeys(
    "left_children parents right_children split_indices leaf_child_counts categories_nodes "
    "categories offsets".split(),
    "l",
)
_MARKERS |= {"default_left": "U", "split_type": "U", "values": "i"}
_MARKERS |= {"categories_segments": "L", "categories_sizes": "L"}
_CODES = {"U": "B", "i": "b", "l": "i", "L": "q", "d": "f"}


def damaged_ubjson(data: bytes, rng: random.Random) -> bytes:
    return to_ubjson(damaged_values(_document(data, _lists), rng))


def _lists(data: bytes) -> Any:
    """Read UBJSON with lists for arrays."""

    def listed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: listed(each) for key, each in value.items()}
        if isinstance(value, np.ndarray):
            return value.tolist()
        return [listed(each) for each in value] if isinstance(value, list) else value

    return listed(ubjson.loads(data))


def to_ubjson(value: Any, key: str = "") -> bytes:
    """Write UBJSON as XGBoost does, numbers of one kind as typed arrays where they fit."""
    if isinstance(value, dict):
        pairs = (_text(name) + to_ubjson(child, name) for name, child in value.items())
        return b"{" + b"".join(pairs) + b"}"
    if isinstance(value, list):
        return _typed(value, key) or b"[" + b"".join(map(to_ubjson, value)) + b"]"
    if isinstance(value, str):
        return b"S" + _text(value)
    if value is None or isinstance(value, bool):
        return {None: b"Z", True: b"T", False: b"F"}[value]
    if isinstance(value, int):
        return b"L" + struct.pack(">Q", value & (2**64 - 1))
    return b"D" + struct.pack(">d", value)


def _text(text: str) -> bytes:
    data = text.encode()
    return b"L" + struct.pack(">q", len(data)) + data


def _typed(values: list[Any], key: str) -> bytes | None:
    marker = _MARKERS.get(key)
    if marker is None or not {int, float}.issuperset(map(type, values)):
        return None
    try:
        body = struct.pack(f">{len(values)}{_CODES[marker]}", *values)
    except (struct.error, OverflowError):
        return None
    return b"[$" + marker.encode() + b"#L" + struct.pack(">q", len(values)) + body


def damaged_words(data: bytes, rng: random.Random) -> bytes:
    """Put other 32 bits in the place of some, at a multiple of four bytes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) // 4) if rng.random() < 0.6 else rng.randrange(120)
        shift = rng.choice((0, 0, 1, 2, 3))
        at = min(4 * at + shift, len(data) - 4)
        (old,) = struct.unpack_from("<I", data, at)
        new = rng.choice([*NUMBERS, old + 1, old - 1, old ^ 1 << 31, rng.randrange(40), 0x7FC00000])
        struct.pack_into("<I", found, at, new & 0xFFFFFFFF)
    return bytes(found)


def damaged_lines(data: bytes, rng: random.Random) -> bytes:
    """Change words of lines of a LightGBM file; mostly its `tree_sizes` fit again afterwards."""
    lines = data.decode().split("\n")
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.choice([i for i, line in enumerate(lines) if line])
        key, equals, value = lines[at].partition("=")
        words = value.split(" ")
        damaged_values(words, rng)
        lines[at] = key + equals + " ".join(map(str, words))
        if rng.random() < 0.06:
            lines.insert(rng.randrange(len(lines)), lines[at])
        if rng.random() < 0.06:
            del lines[at]
    text = "\n".join(lines)
    return (text if rng.random() < 0.1 else _with_sizes(text)).encode(errors="replace")


def _with_sizes(text: str) -> str:
    head, *trees = re.split(r"(?m)^(?=Tree=\d|end of trees)", text)
    sizes = " ".join(str(len(tree)) for tree in trees if tree.startswith("Tree="))
    return re.sub(r"(?m)^tree_sizes=.*$", f"tree_sizes={sizes}", head) + "".join(trees)


def damaged_onnx(data: bytes, rng: random.Random) -> bytes:
    """Change attributes of the nodes of a graph."""
    model = onnx.load_model_from_string(data)
    node = rng.choice(model.graph.node)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        attribute = rng.choice(node.attribute)
        if rng.random() < 0.04:
            node.attribute.remove(attribute)
        elif rng.random() < 0.03:
            attribute.type = rng.randrange(15)
        else:
            _damage_attribute(attribute, rng)
    return model.SerializeToString()


def _damage_attribute(attribute: Any, rng: random.Random) -> None:
    if attribute.HasField("t"):
        return _damage_tensor(attribute.t, rng)
    for name in ("ints", "floats", "strings"):
        values = list(getattr(attribute, name))
        if values:
            changed = _fitting(damaged_values([values], rng), name)
            del getattr(attribute, name)[:]
            return getattr(attribute, name).extend(changed)
    if attribute.HasField("s"):
        attribute.s = rng.choice((b"SUM", b"MAX", b"AVERAGE", b"SOFTMAX", b"LOGISTIC", b"", b"x"))
    else:
        attribute.i = rng.choice([0, 1, 2, 3, -1, 10**9, 2**62])
    return None


def _fitting(values: list[Any], name: str) -> list[Any]:
    """The numbers that protobuf takes, of what `damaged_values` made."""
    (inner,) = values if len(values) == 1 and isinstance(values[0], list) else ([],)
    if name == "ints":
        return [v for v in inner if type(v) is int and abs(v) < 2**63]
    if name == "floats":
        return [float(v) for v in inner if isinstance(v, int | float) and abs(v) < 3e38 or v != v]
    modes = (b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_EQ", b"LEAF", b"BRANCH_LEQ", b"\xff")
    return [v if isinstance(v, bytes) else modes[len(str(v)) % 6] for v in inner]


def _damage_tensor(tensor: Any, rng: random.Random) -> None:
    choice = rng.random()
    if choice < 0.1:
        tensor.data_type = rng.randrange(20)
    elif choice < 0.25:
        del tensor.dims[:]
        tensor.dims.extend(rng.choice(([0], [-1], [10**9], [2, 2], [], [2**40], [3])))
    elif tensor.raw_data:
        tensor.raw_data = damaged_bytes(tensor.raw_data, rng)
    else:
        name = next((n for n in ("double_data", "float_data") if getattr(tensor, n)), None)
        values = list(getattr(tensor, name)) if name else []
        if values:
            changed = _fitting(damaged_values([values], rng), "floats")
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(changed)


def damaged_manifest(data: bytes, rng: random.Random) -> bytes:
    """Change what a saved predictor says of itself, or leave a part out; the checksum is right."""
    whole = archive.unpack(data, "")
    parts = dict(whole.parts)
    manifest = whole.manifest
    if rng.random() < 0.2:
        parts.pop(rng.choice(sorted(parts)))
    else:
        manifest = damaged_values(manifest, rng)
    return archive.pack(archive.Archive(manifest, parts))


# -- readers --------------------------------------------------------------------------------------


def read_model(data: bytes, suffix: str, said: Phase, margins: Any) -> str:
    """Load a model; where we do and its library does, compare the margins of hard rows."""
    with tempfile.NamedTemporaryFile(suffix=suffix, dir=memory_folder()) as file:
        file.write(data)
        file.flush()
        try:
            forest = tvm_forest.load(file.name)
        except (ModelFormatError, UnsupportedModel) as error:
            check_message(str(error))
            return "refused"
        if forest.row_width > MOST_FEATURES:
            return "taken"
        rows = _probe_rows(forest, margins)
        sums = forest.predict_reference(rows)
        if zlib.crc32(data) % COMPILED == 0:
            said("compiling")
            _check_compiled(forest, sums, rows)
        if margins is None:
            return "taken"
        ours = sums.astype(forest.value_dtype or forest.sum_dtype)
        said("library")
        return compared(forest, ours, rows, lambda: margins(data, file.name, rows, forest))


def _probe_rows(forest: Forest, margins: Any) -> Any:
    """Hard rows without what a library does not take, or takes wrongly."""
    rows = hard_rows(forest, N_ROWS)
    if margins is xgboost_margins:  # a DMatrix takes no infinities
        return np.nan_to_num(rows, nan=np.nan)
    has_large_sets = any(max(members, default=0) > 30 for members in forest.categories.values())
    if margins is onnx_margins and has_large_sets:  # where onnxruntime cuts off fractions
        return np.trunc(rows)
    return rows


def _check_compiled(forest: Forest, sums: Any, rows: Any) -> None:
    """Compare the compiled model with the walk; what has no machine code is refused by name."""
    try:
        predictor = tvm_forest.build(forest, n_jobs=1)
    except UnsupportedModel as error:
        return check_message(str(error))
    np.testing.assert_array_equal(predictor.predict_margin(rows).reshape(sums.shape), sums)
    return None


def compared(forest: Forest, ours: Any, rows: Any, theirs: Callable[[], Any]) -> str:
    """Compare margins with those of the library, which may fail in any way."""
    try:
        answer = theirs()
        answer = answer.astype(float) if answer.dtype == object else answer
    except Exception:  # whatever a library does with a damaged model is its own business
        return "refused by the library"
    assert ours.shape == answer.shape, f"{ours.shape} is not {answer.shape} of {forest.source}"
    close = np.array_equal(ours, answer, equal_nan=True)
    if not close:
        wrong = np.argwhere(~((ours == answer) | (np.isnan(ours) & np.isnan(answer))))[0]
        at = tuple(wrong)
        raise AssertionError(f"{ours[at]!r} is not {answer[at]!r} at {at} of {forest.source}")
    return "equal"


def memory_folder() -> str | None:
    """A folder in memory, None where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def check_message(text: str) -> None:
    """Check that an error is one line of sensible length that says what to do."""
    assert text.isprintable() and len(text) < 2000, f"a message of {len(text)} characters: {text}"
    assert "; " in text, f"a message without remedy: {text}"


def xgboost_margins(data: bytes, path: str, rows: Any, forest: Forest) -> Any:
    booster = xgb.Booster({"nthread": 1}, model_file=bytearray(data))
    matrix = models.matrix_of(booster, rows)
    return booster.predict(matrix, output_margin=True).reshape(len(rows), -1)


def lightgbm_margins(data: bytes, path: str, rows: Any, forest: Forest) -> Any:
    booster = lgb.Booster(model_file=path)
    raw = booster.predict(rows, raw_score=True, num_threads=1).reshape(len(rows), -1)
    return raw / booster.current_iteration() if forest.aggregate == "average" else raw


def onnx_margins(data: bytes, path: str, rows: Any, forest: Forest) -> Any:
    if forest.link != "identity" or forest.n_outputs == 1 and forest.label_rule != "none":
        raise NotImplementedError("onnxruntime tells no margins of these")
    return onnx_models.answers(data, rows)[-1].reshape(len(rows), -1)


def treelite_margins(data: bytes, path: str, rows: Any, forest: Forest) -> Any:
    return treelite_models.margins(treelite.Model.deserialize(path), rows)


def read_profile(data: bytes, suffix: str, said: Phase, _: Any) -> str:
    with tempfile.NamedTemporaryFile(suffix=suffix, dir=memory_folder()) as file:
        file.write(data)
        file.flush()
        try:
            found = Profile.load(file.name)
        except ModelFormatError as error:
            check_message(str(error))
            return "refused"
    sums = np.add.reduceat(found.hits, found.leaf_offset[:-1]) if found.n_trees else np.zeros(0)
    assert np.all(sums == found.rows)
    return "taken"


def read_schedule(data: bytes, suffix: str, said: Phase, _: Any) -> str:
    try:
        sch = Schedule.from_json(data.decode(errors="replace"))
    except ScheduleError:
        return "refused"
    check_schedule(sch)
    return "taken"


def check_schedule(sch: Schedule) -> None:
    """Check the invariants of a schedule that we made, and that its text means the same."""
    assert sch.problem() is None, sch.problem()
    again = Schedule.from_json(sch.to_json())
    assert (again, again.steps) == (sch, sch.steps)
    assert str(sch) == str(again)


def read_predictor(data: bytes, suffix: str, said: Phase, _: Any) -> str:
    with tempfile.NamedTemporaryFile(suffix=suffix, dir=memory_folder()) as file:
        file.write(data)
        file.flush()
        said("compiling")  # where the stored code is of another version
        try:
            load_predictor(file.name)
        except (ModelFormatError, BuildError):
            return "refused"
        return "taken"


# -- sound files ----------------------------------------------------------------------------------


@lru_cache
def boosters() -> list[Any]:
    """Small boosters of each sort that the format tells apart."""
    names = ("logistic", "softprob", "dart", "pruned", "missing_values", "random_forest_classes")
    kinds = ("categories_in_sets", "categories_one_hot", "named_categories", "targets", "vectors")
    found = [models.MODELS[name]() for name in names]
    found += [xgboost_models.KINDS[name]() for name in kinds]
    return [booster[:ROUNDS] for booster in found]


def old_files(suffix: str) -> list[bytes]:
    """Files of old versions, and of later ones that the installed XGBoost understands."""
    paths = sorted(OLD.glob(f"*.{suffix}"))
    return [path.read_bytes() for path in paths if not re.search(r"-3\.[34].*-dart", path.name)]


def json_files() -> list[bytes]:
    return old_files("json") + [bytes(booster.save_raw("json")) for booster in boosters()]


def ubjson_files() -> list[bytes]:
    return old_files("ubj") + [bytes(booster.save_raw("ubj")) for booster in boosters()]


def binary_files() -> list[bytes]:
    return [path.read_bytes() for path in sorted(OLD.glob("*.model"))]


def lightgbm_files() -> list[bytes]:
    names = ("nothing_missing", "missing_zero_and_nan", "categories", "binary", "multiclass")
    names += ("random_forest_classes", "one_leaf", "pandas_categories", "stumps", "linear")
    return [lightgbm_models.MODELS[name]().model_to_string(None, ROUNDS).encode() for name in names]


def onnx_files() -> list[bytes]:
    drawn = onnx_models.drawn_trees
    plain, modes = onnx_models.PLAIN, onnx_models.MODES
    found = [
        onnx_models.regressor(drawn(1, 5, plain)),
        onnx_models.regressor(drawn(2, 5, plain[:4]), dtype="float64", base=[0.5]),
        onnx_models.regressor(drawn(3, 6, plain, 3, votes="all"), targets=3, base=[1.0, -2.0, 0.5]),
        onnx_models.regressor(drawn(3, 6, plain[:2]), aggregate_function="AVERAGE"),
        onnx_models.classifier(drawn(4, 6, plain[:4], 3, votes="all"), labels=[4, -1, 9]),
        onnx_models.classifier(drawn(5, 1, plain[:2], low=0.0), labels=["no", "yes"]),
        onnx_models.ensemble(drawn(6, 6, modes)),
        onnx_models.ensemble(drawn(7, 6, plain), dtype="float64", aggregate_function=3),
    ]
    return [model.SerializeToString() for model in found]


def treelite_files() -> list[bytes]:
    names = [name for name in treelite_models.MODELS if name.startswith("drawn")]
    return [treelite_models.MODELS[name]().serialize_bytes() for name in names[::3]]


@lru_cache
def small_forest() -> Forest:
    trees = [Split(0, 0.5, -1.0, 2.0), Split(1, -0.25, 0.5, Split(2, 1.5, 0.25, 4.0), True), 0.125]
    return forest_of(trees, base=[0.1])


@lru_cache
def schedules() -> list[bytes]:
    """Traces with most of the directives."""
    start = Schedule(12, depths=tuple(range(1, 13)))
    found = [
        start.tile("batch", "b0", "b1", 8).reorder("b0", "tree", "b1").parallel("b0"),
        start.tile("tree", "t0", "t1", 3).unroll("t1").represent_as("packed"),
        start.tile_nodes(4, how="uniform").pad_trees("tree").represent_as("sparse"),
        start.peel_walk("tree", 2).interleave("tree", 2),
        Schedule(12, 3).tile("batch", "b0", "b1", 8).reorder("b0", "class", "tree", "b1"),
    ]
    return [sch.to_json().encode() for sch in found]


@lru_cache
def profiles(suffix: str) -> list[bytes]:
    forest = small_forest()
    ends = forest.predict_reference(hard_rows(forest, 90), "apply")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"profile{suffix}"
        Profile.of_leaves(forest, ends).save(path)
        return [path.read_bytes()]


@lru_cache
def predictors() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictor.tvmf"
        tvm_forest.build(small_forest()).save(path)
        return [path.read_bytes()]


class Files(NamedTuple):
    """A kind of damaged file.

    Attributes:
        sound: gives the files to begin with.
        damage: changes one.
        suffix: of the name of the file.
        read: reads one, `(bytes, suffix, said, margins) -> outcome`.
        margins: the answer of the library, `(bytes, path, rows, forest) -> (R, C)`.
    """

    sound: Callable[[], list[bytes]]
    damage: Callable[[bytes, random.Random], bytes]
    suffix: str
    read: Callable[..., str]
    margins: Any = None


_MODELS: dict[str, tuple[Any, Any, str, Any]] = {
    "json": (json_files, damaged_json, ".json", xgboost_margins),
    "ubjson": (ubjson_files, damaged_ubjson, ".ubj", xgboost_margins),
    "binary": (binary_files, damaged_words, ".model", None),
    "lightgbm": (lightgbm_files, damaged_lines, ".txt", lightgbm_margins),
    "onnx": (onnx_files, damaged_onnx, ".onnx", onnx_margins),
    "treelite": (treelite_files, damaged_words, ".tl", treelite_margins),
}
FILES: dict[str, Files] = {}
for _name, (_sound, _damage_of, _suffix, _margins) in _MODELS.items():
    _sound = lru_cache(_sound)
    FILES[f"{_name} bytes"] = Files(_sound, damaged_bytes, _suffix, read_model, _margins)
    FILES[f"{_name} values"] = Files(_sound, _damage_of, _suffix, read_model, _margins)
for _suffix, _damage_of in ((".csv", damaged_bytes), (".json", damaged_json)):
    _sound = lru_cache(lambda suffix=_suffix: profiles(suffix))
    FILES[f"profile {_suffix[1:]}"] = Files(_sound, _damage_of, _suffix, read_profile)
FILES["profile bytes"] = Files(lambda: profiles(".json"), damaged_bytes, ".json", read_profile)
FILES["schedule bytes"] = Files(schedules, damaged_bytes, ".json", read_schedule)
FILES["schedule values"] = Files(schedules, damaged_json, ".json", read_schedule)
FILES["predictor bytes"] = Files(predictors, damaged_bytes, ".tvmf", read_predictor)
FILES["predictor values"] = Files(predictors, damaged_manifest, ".tvmf", read_predictor)


def drawn_file(kind: str, seed: int) -> bytes:
    """Return the damaged file of a kind and a seed."""
    rng = random.Random(f"{kind} {seed}")
    files = FILES[kind]
    return files.damage(rng.choice(files.sound()), rng)


def check_file(kind: str, seed: int, said: Phase) -> str:
    """Read the damaged file of a kind and a seed; return what became of it."""
    data, files = drawn_file(kind, seed), FILES[kind]
    said("ours")
    return files.read(data, files.suffix, said, files.margins)


def silence() -> None:
    """Keep the libraries from printing."""
    onnxruntime.set_default_logger_severity(4)
    xgb.set_config(verbosity=0)
    lgb.register_logger(_Quiet())


class _Quiet:
    def info(self, text: str) -> None:
        """Drop a line."""

    warning = info
