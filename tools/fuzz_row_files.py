"""Damaged files of rows, and rows by name: refused, or the margins of what was read.

`CHECKS` maps a kind to what draws an input, tries it and says what became of it.
"""

from __future__ import annotations

import csv
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

import _path  # noqa: F401 (what tests share)
import tvm_forest
from forests import Split, forest_of
from fuzz_files import FLOATS, NUMBERS, OTHERS, Phase, damaged_bytes, memory_folder, odd_value
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows

NAMES = ("age", "height", "weight")
FORMATS = ("csv", "tsv", "jsonl", "parquet", "arrow", "npy")
N = 40


@lru_cache
def predictors() -> list[Any]:
    """A model with names, one without, and one that takes categories by their labels."""
    trees = [Split(0, 0.5, -1.0, 2.0), Split(1, -0.25, 0.5, Split(2, 1.5, 0.25, 4.0), True), 0.125]
    labels = {1: ("low", "high", "none")}
    forests = [
        forest_of(trees, base=[0.1], feature_names=NAMES),
        forest_of(trees, base=[0.1]),
        forest_of(trees, base=[0.1], feature_names=NAMES, category_names=labels),
    ]
    return [tvm_forest.build(x, schedule=lambda start: start, n_jobs=1) for x in forests]


@lru_cache
def columns(place: int) -> dict[str, Any]:
    """Rows of a model by column, with a column that it does not know unless columns are unnamed."""
    forest = predictors()[place].forest
    rows = hard_rows(forest, N, seed=place).astype(np.float64)
    rows = np.where(np.isinf(rows), 0.5, rows)
    found: dict[str, Any] = dict(zip(NAMES, rows.T, strict=True))
    for i, labels in forest.category_names.items():
        found[NAMES[i]] = [labels[k % len(labels)] for k in range(N)]
    return found if forest.feature_names is None else {"id": list(range(N)), **found}


@lru_cache
def sound(place: int, form: str) -> bytes:
    """A sound file of rows."""
    held = columns(place)
    file = io.BytesIO()
    table = pa.table({name: pa.array(x, from_pandas=True) for name, x in held.items()})
    if form == "parquet":
        parquet.write_table(table, file, row_group_size=25)
    elif form == "arrow":
        with pa.ipc.new_file(file, table.schema) as opened:
            opened.write_table(table, 25)
    elif form == "npy":
        numbers = [x if isinstance(x, np.ndarray) else np.zeros(N) for x in held.values()]
        np.save(file, np.array(numbers[-3:]).T.copy().astype("f4"))
    elif form == "jsonl":
        lines = (json.dumps(row) + "\n" for row in table.to_pylist())
        return "".join(lines).encode()
    else:
        frame = pd.DataFrame(held)
        frame.to_csv(file, index=False, sep="," if form == "csv" else "\t")
    return file.getvalue()


def check_file(form: str, damage: Callable[..., bytes], rng: random.Random, said: Phase) -> str:
    """Predict the rows of a damaged file; what comes out is what its rows give, by another way."""
    place = rng.randrange(len(predictors()))
    predictor, data = predictors()[place], sound(place, form)
    if rng.random() < 0.98:
        data = damage(data, rng)
    found = io.BytesIO()
    size = rng.choice((1, 7, 65536))
    said("ours")
    try:
        with _place(data, rng.random() < 0.3) as source:
            count = tvm_forest.predict_file(
                predictor,
                source,
                found,
                kind="predict_margin",
                batch_rows=size,
                source_format=form,
                target_format="npy" if rng.random() < 0.1 else "jsonl",
            )
    except InputError as error:
        assert "predict: " in str(error), str(error)
        return "refused"
    margins = read_margins(found.getvalue())
    assert len(margins) == count
    rows = read_otherwise(data, form, predictor.forest)
    if rows is None:
        return "taken"
    expected = predictor.forest.predict_reference(rows).ravel()
    np.testing.assert_array_equal(margins.astype(np.float32), expected)
    return "equal"


@contextmanager
def _place(data: bytes, is_file: bool) -> Iterator[Any]:
    """A stream, or the path of a file: some formats read files in another way."""
    if not is_file:
        yield io.BytesIO(data)
        return
    with tempfile.NamedTemporaryFile(dir=memory_folder()) as file:
        file.write(data)
        file.flush()
        yield file.name


def read_margins(data: bytes) -> Any:
    """The margins of a file of predictions."""
    if data.startswith(b"\x93NUMPY"):
        return np.load(io.BytesIO(data)).ravel()
    return np.array([json.loads(line)["margin"] for line in data.splitlines()], np.float64)


def read_otherwise(data: bytes, form: str, forest: Any) -> Any:
    """The same rows by plain Python or pandas; None where that is not simple enough to trust."""
    try:
        return _arrange(READERS[form](data), forest)
    except Exception:  # the other way may fail as it likes
        return None


def _arrange(held: Any, forest: Any) -> Any:
    if isinstance(held, np.ndarray):
        return held.astype(np.float32)
    names = forest.feature_names or tuple(held)
    if len(names) != 3 or not set(names) <= set(held):
        return None
    columns = []
    for i, name in enumerate(names):
        known = forest.category_names.get(i)
        values = held[name]
        if known is None:
            blank = [x is None or isinstance(x, str) and not x.strip() for x in values]
            columns.append([np.nan if b else float(x) for b, x in zip(blank, values, strict=True)])
        else:
            columns.append([known.index(x) if x in known else np.nan for x in values])
    with np.errstate(over="ignore"):
        return np.array(columns, np.float64).T.reshape(-1, 3).astype(np.float32)


def _read_text(data: bytes, delimiter: str) -> Any:
    lines = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter))
    lines = [line for line in lines if line]
    if not set(NAMES) <= set(lines[0]) or len(set(lines[0])) < len(lines[0]):
        return {}
    return {name: [line[i] for line in lines[1:]] for i, name in enumerate(lines[0])}


def _read_json(data: bytes) -> Any:
    lines = [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]
    if any(type(x) not in (float, int, str, type(None)) for line in lines for x in line.values()):
        return {}
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}


READERS: dict[str, Callable[[bytes], Any]] = {
    "csv": lambda data: _read_text(data, ","),
    "tsv": lambda data: _read_text(data, "\t"),
    "jsonl": _read_json,
    "parquet": lambda data: {},
    "arrow": lambda data: {},
    "npy": lambda data: np.load(io.BytesIO(data), allow_pickle=False),
}

# -- structure ------------------------------------------------------------------------------------


def damaged_fields(data: bytes, rng: random.Random) -> bytes:
    """Change fields of a text, or its lines."""
    text = data.decode()
    delimiter = "\t" if "\t" in text else ","
    lines = [line.split(delimiter) for line in text.split("\n")]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.choice((0, rng.randrange(len(lines))))
        line, choice = lines[at], rng.random()
        if choice < 0.6:
            line[rng.randrange(len(line))] = odd_field(rng)
        elif choice < 0.7:
            line.append(rng.choice(line))
        elif choice < 0.8 and len(line) > 1:
            line.pop(rng.randrange(len(line)))
        elif choice < 0.9:
            lines.insert(at, list(rng.choice(lines)))
        else:
            rng.shuffle(line)
    end = rng.choice(("\n", "\n", "\n", "\r\n", "\r", "\n\n"))
    return end.join(delimiter.join(line) for line in lines).encode(errors="replace")


def odd_field(rng: random.Random) -> str:
    odd = [
        "",
        " ",
        '"',
        '""',
        '"1"',
        "1,5",
        "1 ",
        " 1",
        "١",
        "1_0",
        "0x1",
        "1e400",
        "-1e400",
        "NaN",
    ]
    odd += [
        "nan",
        "-inf",
        "Infinity",
        "1e",
        "1d5",
        "\0",
        "é",
        "low",
        "High",
        "None",
        "null",
        "true",
    ]
    odd += ["9" * 400, "1e-400", "0.1" + "0" * 300, "\ufeff1", "+1", "--1", "1;2", "'1'", "=1+1"]
    return rng.choice([*odd, *NAMES, *map(str, NUMBERS), *map(str, FLOATS)])


def damaged_objects(data: bytes, rng: random.Random) -> bytes:
    """Change objects of JSON lines."""
    rows = [json.loads(line) for line in data.splitlines()]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(rows))
        row, choice = rows[at], rng.random()
        if not isinstance(row, dict) or not row:
            continue
        name = rng.choice(sorted(row))
        if choice < 0.6:
            row[name] = odd_value(row[name], rng)
        elif choice < 0.75:
            del row[name]
        elif choice < 0.85:
            row[rng.choice(("age ", "x", "", "ä"))] = rng.choice([*OTHERS, *NUMBERS])
        elif choice < 0.9:
            rows[at] = rng.choice([*OTHERS, *NUMBERS])
        else:
            rows[at] = dict(sorted(row.items(), reverse=True))
    lines = [json.dumps(row) for row in rows]
    if rng.random() < 0.1:
        lines.insert(
            rng.randrange(len(lines)), rng.choice(("", " ", "[]", "{", "nan", '{"age":1}'))
        )
    return "\n".join(lines).encode()


def damaged_tables(data: bytes, rng: random.Random) -> bytes:
    """Write columns of other types, lengths and names as Parquet or Arrow."""
    is_parquet = data.startswith(b"PAR1")
    held = dict(columns(rng.randrange(3)))
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(held))
        choice = rng.random()
        if choice < 0.7:
            held[name] = _odd_column(rng)
        elif choice < 0.8 and len(held) > 1:
            del held[name]
        elif choice < 0.9:
            held = dict(sorted(held.items(), key=lambda _: rng.random()))
        else:
            held[rng.choice(("more", "", "age ", "ä"))] = held[name]
    table = pa.table(held)
    file = io.BytesIO()
    if is_parquet:
        parquet.write_table(table, file, row_group_size=rng.choice((1, 25, 100)))
    else:
        with pa.ipc.new_file(file, table.schema) as opened:
            opened.write_table(table, rng.choice((1, 25, 100)))
    return file.getvalue()


def _odd_column(rng: random.Random) -> Any:
    kinds = ["int8", "uint64", "int64", "float16", "float32", "float64", "bool_", "string", "null"]
    kind = rng.choice([*kinds, "binary", "date32", "list", "struct", "dictionary", "decimal"])
    numbers = [rng.choice((None, 0, 1, 2, -1, 100)) for _ in range(N)]
    if kind == "list":
        return pa.array([[1.0]] * N)
    if kind == "struct":
        return pa.array([{"a": 1}] * N)
    if kind == "dictionary":
        return pa.array(
            [rng.choice(("low", "high", "top", None)) for _ in range(N)]
        ).dictionary_encode()
    if kind == "decimal":
        return pa.array([None] * N, pa.decimal128(5, 2))
    if kind in ("string", "binary"):
        texts = [rng.choice(("low", "1", "", None)) for _ in range(N)]
        return pa.array(texts, getattr(pa, kind)())
    if kind == "float16":
        return pa.array(np.array([x or 0 for x in numbers], np.float16))
    if kind in ("uint64", "bool_", "null", "date32"):
        numbers = [None if kind == "null" or x is None else abs(x) > 0 for x in numbers]
        return pa.array(numbers).cast(getattr(pa, kind)()) if kind != "date32" else pa.nulls(N)
    return pa.array(numbers, getattr(pa, kind)())


def damaged_header(data: bytes, rng: random.Random) -> bytes:
    """Write another header before the numbers of a file of numpy."""
    size = 10 + int.from_bytes(data[8:10], "little")
    shape = rng.choice([(N, 3), (3, N), (N * 3,), (N, 3, 1), (N, -3), (2**62, 3), (2**40, 2**40)])
    shape = rng.choice(
        [shape, (0, 3), (0, 2**40), (N, 3.0), "x", (N, True), (), [N, 3], (N + 1, 3)]
    )
    kinds = ["<f4", ">f4", "<f8", "|O", "|S4", "<i4", "<c8", "f4,i4", "<M8[s]", "x", "", "<f2"]
    kinds += ["|b1", "<u8", "<f16", None, "<U1", "|V4", "<f4" * 2, "(2,)<f4"]
    kind = rng.choice(["<f4"] * 8 + kinds)
    about = {
        "descr": kind,
        "fortran_order": rng.choice((False, False, True, 0, None)),
        "shape": shape,
    }
    if rng.random() < 0.1:
        about.pop(rng.choice(sorted(about)))
    text = rng.choice((str(about), str(about), json.dumps(about), "__import__('os')")).encode()
    version = rng.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\0\0"))
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return data[:6] + version + length + text + data[size:]


STRUCTURED = {
    "csv": damaged_fields,
    "tsv": damaged_fields,
    "jsonl": damaged_objects,
    "parquet": damaged_tables,
    "arrow": damaged_tables,
    "npy": damaged_header,
}


# -- rows by name ---------------------------------------------------------------------------------


def check_named(rng: random.Random, said: Phase) -> str:
    """Predict a dict, several, or a Series, damaged in names or values."""
    predictor = rng.choice(predictors())
    forest = predictor.forest
    rows = [_named_row(forest, rng) for _ in range(rng.choice((1, 1, 2, 5)))]
    meant = None if rng.random() < 0.7 else rows
    for _ in range(rng.choice((1, 1, 2)) if meant is None else 0):
        row = rng.choice(rows)
        name = rng.choice(sorted(map(str, row)) or ["x"])
        choice = rng.random()
        if choice < 0.6:
            row[name] = rng.choice(
                [odd_value(row.get(name), rng), *OTHERS, object(), b"1", 1j, pd.NA]
            )
        elif choice < 0.8:
            row.pop(name, None)
        else:
            row[rng.choice(("x", 0, None, "age ", ("age",), "ä"))] = 1.0
    given: Any = rows[0] if len(rows) == 1 and rng.random() < 0.6 else rows
    if isinstance(given, dict) and rng.random() < 0.4:
        given = pd.Series(given, dtype=object)
    said("ours")
    try:
        margins = predictor.predict_margin(given)
    except InputError as error:
        assert meant is None or forest.feature_names is None, str(error)
        assert len(str(error)) < 2000
        return "refused"
    if meant is None:
        return "taken"
    array = np.array(
        [[_number(row[name], forest, i) for i, name in enumerate(NAMES)] for row in meant]
    )
    expected = forest.predict_reference(array.astype(np.float32)).ravel()
    np.testing.assert_array_equal(np.ravel(margins), expected)
    return "equal"


def _named_row(forest: Any, rng: random.Random) -> dict[Any, Any]:
    row: dict[Any, Any] = {}
    for i, name in enumerate(NAMES):
        labels = forest.category_names.get(i)
        row[name] = rng.choice(labels or (0.5, -0.25, 1.5, None, float("nan"), 2, True, 1e30))
    return row


def _number(value: Any, forest: Any, place: int) -> float:
    labels = forest.category_names.get(place)
    if labels is not None:
        return labels.index(value)
    return np.nan if value is None else float(value)


def _checks() -> dict[str, Callable[..., str]]:
    found: dict[str, Callable[..., str]] = {"named rows": check_named}
    for form in FORMATS:
        for word, damage in (("bytes", damaged_bytes), ("values", STRUCTURED[form])):

            def check(rng: Any, said: Phase, form: str = form, damage: Any = damage) -> str:
                return check_file(form, damage, rng, said)

            found[f"{form} rows {word}"] = check
    return found


CHECKS = _checks()


def prepare() -> None:
    """Compile the models and write the sound files."""
    for place in range(len(predictors())):
        for form in FORMATS:
            sound(place, form)
