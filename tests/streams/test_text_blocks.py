"""CSV that pyarrow reads block after block: the bits and the refusals of the reader in Python."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forests import Split, forest_of
from tvm_forest.errors import InputError
from tvm_forest.streams import text_blocks
from tvm_forest.streams.batches import Batch, choose_columns
from tvm_forest.streams.formats import Reading
from tvm_forest.streams.separated_rows import SeparatedRows

NAMES = ("a", "b", "c")
TREES = [Split(0, 0.5, -1.0, 2.0), Split(2, 1.5, 0.25, 4.0)]
NUMBERS = (
    *("0", "-0", "-0.0", "1", "00001", "1.", ".5", "1e5", "1E5", "1.e5", "1e+05", "0.1", "1e23"),
    *("9007199254740993", "9007199254740992.5", "1.00000005960464477539", "16777217", "8.5e-324"),
    *("1.000000059604644775390625", "1.0000000596046447753906250000000001", "0.1" + "0" * 300),
    *("2.2250738585072011e-308", "1.1754943508222875e-38", "7e-46", "3.4028235677973366e38"),
    *("nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1.7976931348623157e308", "", "", ""),
)
ODD = (
    *("+1", "1_0", "1__0", " 1", "1 ", "\t1", " ", "\x0b1", "1e400", "-1e400", "1e-400", "9" * 400),
    *("4.9e-324", "2e-324", "0x10", "0x1p3", "nan(1)", "NAN(ind)", "nan()", "+nan", "infinit"),
    *("1e", "1d5", "1f", "--1", "+-1", "1,5", "1;5", "true", "None", "null", "NA", "\u0661", "é"),
    *("1\u00a0", "\0", "1\0", "'1'", "=1+1", "#1", "\ufeff1", "x", "1" * 200, "\u2028", "\x1c"),
)
QUOTED = (
    *('"1"', '""', '"1,5"', '"x,y"', '"a""b"', '"""a"""', '""""', '"1\n"', '"\n"', '"a\r\nb"'),
    *('"1"x', 'x"1"', '"', '"1', '1"', ' "1"', '"1" ', 'a"b"c', '"a"b"c"', '5"', '"a\nb,c\n"'),
)


def draw_field(rng: random.Random, hardness: float) -> str:
    chance = rng.random()
    if chance < hardness:
        return rng.choice(rng.choice((ODD, QUOTED)))
    if chance < 0.5:
        return repr(np.float32(rng.gauss(0, 10)).item() * 10.0 ** rng.randrange(-45, 38))
    return rng.choice(NUMBERS)


def draw_text(rng: random.Random, delimiter: str) -> bytes:
    """A small file, most often with few fields that are odd."""
    hardness = rng.choice((0, 0, 0.003, 0.01, 0.1))
    lines = [["id", *NAMES]] if rng.random() < 0.9 else []
    for number in range(rng.choice((0, 1, 5, 40, 150))):
        line = [str(number), *(draw_field(rng, hardness) for _ in NAMES)]
        if rng.random() < hardness:
            line = rng.choice((line[:-1], [*line, "1"], [], [""], [" "]))
        lines.append(line)
    end = rng.choice(("\n", "\n", "\r\n", rng.choice(("\r", "\n\n", "\n\r\n"))))
    text = end.join(map(delimiter.join, lines)) + rng.choice((end, end, "", end * 2))
    data = text.encode()
    if rng.random() < 0.1:
        data = b"\xef\xbb\xbf" + data
    if rng.random() < hardness and data:
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice((b"\xff", b"\n", b'"', b"\r", b"\0")) + data[at:]
    return data


def read_all(data: bytes, forest: Any, reading: Reading, size: int) -> Any:
    """Return what becomes of a file: numbers, kept texts, what is left out; or what is said."""
    file = io.BufferedReader(io.BytesIO(data))
    try:
        rows = SeparatedRows(file, "here", forest, reading)
        columns = choose_columns(rows.names, forest, reading, "here", rows.added)
        batches = list(rows.batches(columns, size))
    except InputError as error:
        return str(error)
    return join(batches)


def join(batches: list[Batch]) -> Any:
    """What several batches hold, as it does not depend on where one ends."""
    begin, bad, tables = 0, {}, []
    for batch in batches:
        bad |= {begin + at: what for at, what in batch.bad.items()}
        begin += batch.span
        is_table = hasattr(batch.rows, "schema")
        tables += batch.rows.to_pylist() if is_table else batch.rows.tolist()
    numbers: Any = repr(tables)  # tells 0 from -0, and has all digits
    kept = [
        [text for batch in batches for text in to_list(batch.kept[i])]
        for i in range(len(batches[0].kept))
    ]
    return numbers, kept, bad


def to_list(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.to_pylist()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few lines, so that ends of blocks fall anywhere."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 997)
    monkeypatch.setattr(text_blocks, "LEAST_BYTES", 200)


def compare(data: bytes, forest: Any, reading: Reading, size: int, patch: Any) -> tuple[Any, Any]:
    """Read a file by blocks and without; of several wrong lines the first one is to be told."""
    by_blocks = read_all(data, forest, reading, size)
    if isinstance(by_blocks, str):
        size, by_blocks = 1, read_all(data, forest, reading, 1)
    with patch.context() as context:
        context.setattr(text_blocks, "has_arrow", bool)
        alone = read_all(data, forest, reading, size)
    return by_blocks, alone


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.cases(3, others="long")
def test_both_readers_agree_on_drawn_files(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, seen = random.Random(seed), {"refused": 0, "read": 0}
    named = forest_of(TREES, feature_names=NAMES)
    for _ in range(120):
        delimiter = rng.choice(",,;\t")
        decimal = "," if delimiter != "," and rng.random() < 0.3 else "."
        reading = Reading(
            header=rng.choice((None, None, True, False)),
            keep=rng.choice(((), ("id",), ("a", "id"), ("id", "a", "b", "c"))),
            delimiter=delimiter,
            decimal=decimal,
            missing=rng.choice((frozenset(), frozenset(("NA", "0", "x")))),
            skips=rng.random() < 0.3,
            folders=rng.choice(({}, {"year": 2024}, {"c": 7}, {"c": None})),
        )
        data = draw_text(rng, delimiter)
        by_blocks, alone = compare(data, named, reading, rng.choice((3, 65536)), monkeypatch)
        if isinstance(alone, str) and "codec" in alone:  # the place depends on what is read at once
            assert "codec" in by_blocks
            continue
        assert by_blocks == alone, (data, reading)
        seen["refused" if isinstance(alone, str) else "read"] += 1
    assert min(seen.values()) > 10


def test_texts_that_pyarrow_reads_as_numbers_are_the_numbers_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, forest = random.Random(0), forest_of(TREES, feature_names=NAMES)
    signs = "019.e-+inaf() _x"
    texts = {"".join(rng.choices(signs, k=rng.randrange(1, 6))) for _ in range(1500)}
    texts |= {repr(rng.uniform(-1, 1) * 10.0 ** rng.randrange(-330, 300)) for _ in range(300)}
    texts |= {
        f"{rng.getrandbits(70)}.{rng.getrandbits(90)}e{rng.randrange(-360, 290)}" for _ in "a" * 300
    }
    texts |= {f"{(2 * rng.getrandbits(24) + 2**25 + 1) * 2.0**-25:.60f}" for _ in "a" * 200}  # ties
    taken = 0
    for text in sorted(texts):
        data = f"a,b,c\n{text},1,2\n".encode()
        rows = SeparatedRows(io.BufferedReader(io.BytesIO(data)), "here", forest)
        columns = choose_columns(rows.names, forest, Reading(), "here")
        monkeypatch.setattr(rows, "_split_lines", None)  # what Python would read the line with
        try:
            (batch,) = rows.batches(columns, 10)
        except TypeError:
            continue
        taken += 1
        assert repr(batch.rows[0, 0]) == repr(np.float64(text)), text
    assert 800 < taken < len(texts) - 300


@pytest.mark.parametrize(
    ("text", "is_simple"),
    [
        ('a,"b"\n', True),
        ('"a","b""c"\r\n', True),
        ('"a\nb",c\n', True),
        ('"a"', True),
        ('a,b"c"\n', False),
        ('a, "b"\n', False),
        ('a,"b" \n', False),
        ('a,"b\n', False),
        ("a,b\rc,d\n", False),
        ("a,\udcff\n", False),
    ],
)
def test_a_block_is_simple_if_quotes_stand_around_whole_fields(text: str, is_simple: bool) -> None:
    assert text_blocks.is_simple(text.encode(errors="surrogateescape"), ",") == is_simple


def test_a_line_longer_than_a_block_and_a_field_longer_than_python_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forest = forest_of(TREES, feature_names=NAMES)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 5000)
    long = "0." + "1" * 9000
    for text, message in (
        (f"a,b,c,d\n1,2,3,x\n1,2,{long},y\n4,5,6,z\n", ""),
        (f'a,b,c,d\n1,2,3,x\n1,2,3,"{"y," * 4000}"\n4,5,6,z\n', ""),
        (f"a,b,c,d\n1,2,3,x\n1,2,3,{'y' * 131073}\n", "line 3: damaged: field larger"),
    ):
        data, reading = text.encode(), Reading(keep=("d",))
        by_blocks, alone = compare(data, forest, reading, 10, monkeypatch)
        assert by_blocks == alone and (message in by_blocks if message else len(alone[1][0]) == 3)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1 << 20)
    by_blocks, alone = compare(data, forest, reading, 10, monkeypatch)
    assert by_blocks == alone and message in by_blocks


def test_labels_and_texts_of_categories_are_those_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trees = [Split(0, 0.5, -1.0, Split(1, 0.5, 2.0, 3.0))]
    about: Any = {"n_features": 2, "feature_names": ("x", "y")}
    words = forest_of(trees, category_names={1: ("lo", "hi", "NA")}, **about)
    numbers = forest_of(trees, category_names={1: (10, 20)}, **about)
    for forest, good, bad in ((words, "lo,hi,,NA,?", None), (numbers, "10,20,,10", "x")):
        fields = good.split(",")
        lines = [f'{i},"{fields[i % len(fields)]}",k{i}' for i in range(200)]
        for text in ("\n".join(["x,y,z", *lines]), "\n".join(["x,y,z", *lines, f"1,{bad},k"])):
            for reading in (Reading(keep=("z", "y")), Reading(missing=frozenset(("NA", "10")))):
                found = compare(text.encode(), forest, reading, 64, monkeypatch)
                assert found[0] == found[1]
                refuses = bad is not None and text.endswith("x,k")
                assert isinstance(found[0], str) == refuses


def test_categories_of_an_encoder_stay_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SimpleNamespace(categories=np.array([1]), numbers=np.array([0, 2]))
    forest = SimpleNamespace(
        given_names=None,
        given_width=3,
        encoder=encoder,
        spell=list,
        category_names={},
        pandas_categories=(),
    )
    text = "".join(f"{i},{'red' if i % 3 else ''},0.{i}\n" for i in range(300))
    for data in (text, "x,y,z\n" + text, "x,y,z\n" + text + "1,red,x\n"):
        by_blocks, alone = compare(data.encode(), forest, Reading(), 64, monkeypatch)
        assert by_blocks == alone and ("line 302" in alone) == data.endswith("x\n")


def test_pyarrow_is_not_imported_for_a_small_file() -> None:
    code = """
import io, sys
sys.path.insert(0, {tests!r})
import numpy
from forests import Split, forest_of
from tvm_forest.streams.batches import choose_columns
from tvm_forest.streams.formats import AS_IS
from tvm_forest.streams.separated_rows import SeparatedRows
forest = forest_of([Split(0, 0.5, 1.0, 2.0)], n_features=2)
for lines in (1000, 300_000):
    rows = SeparatedRows(io.BytesIO(b"1,2.5\\n" * lines), "here", forest)
    columns = choose_columns(rows.names, forest, AS_IS, "here")
    assert sum(batch.length for batch in rows.batches(columns, 65536)) == lines
    print("pyarrow" in sys.modules)
"""
    tests = str(Path(__file__).parents[1] / "helpers")
    command = [sys.executable, "-c", code.format(tests=tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_mark_of_the_order_of_bytes_is_no_part_of_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forest = forest_of(TREES, feature_names=NAMES)
    for line in (b"+1,2,3\n", b"1,2,3\n", b"a,b,c\n+1,2,3\n"):
        found = compare(b"\xef\xbb\xbf" + line, forest, Reading(), 10, monkeypatch)
        assert found[0] == found[1] == ("[[1.0, 2.0, 3.0]]", [], {})
