"""Several files, folders that give columns, compressed text, rows that are left out."""

from __future__ import annotations

import gzip
import json
import resource
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tvm_forest
from forests import Split, forest_of
from tvm_forest import predict_file
from tvm_forest.cli import main
from tvm_forest.errors import InputError

NAMES = ("a", "b", "c")
TREES = [Split(0, 0.5, -1.0, Split(2, 3.5, 0.5, 4.0)), Split(1, -0.25, 0.5, 2.0), 0.125]


def build(**fields: Any) -> Any:
    forest = forest_of(TREES, **{"feature_names": NAMES, **fields})
    return tvm_forest.build(forest, schedule=lambda start: start)


@pytest.fixture(scope="module")
def named() -> Any:
    return build()


@pytest.fixture(scope="module")
def strict() -> Any:
    """A model that refuses NaN."""
    return build(refuses=("nan",))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def margins(predictor: Any, rows: list[list[float]]) -> list[float]:
    return predictor.predict(np.float32(rows)).tolist()


def predictions(path: Path) -> list[float]:
    return [row["prediction"] for row in read(path)]


def refused(predictor: Any, source: Any, target: Path, **options: Any) -> str:
    """Return what is said of a call that must leave nothing behind."""
    before = sorted(target.parent.rglob("*"))
    with pytest.raises(InputError) as error:
        predict_file(predictor, source, target, **options)
    assert sorted(target.parent.rglob("*")) == before
    return str(error.value)


# -- where rows come from -------------------------------------------------------------------------


@pytest.fixture
def months(tmp_path: Path) -> Path:
    """Folders of a year and a month in each of which lies a file."""
    for number, (year, month) in enumerate([("2023", "12"), ("2024", "01"), ("2024", "02")]):
        folder = tmp_path / "rows" / f"c={year}" / f"month={month}"
        folder.mkdir(parents=True)
        (folder / "part.csv").write_text(f"a,b\n{number},0\n{number}.5,-1\n")
        table = pa.table({"a": [number, number + 0.5], "b": [0.0, -1.0]})
        parquet.write_table(table, folder / "part.parquet")
    (tmp_path / "rows" / "_SUCCESS").touch()
    return tmp_path / "rows"


EXPECTED = [[0, 0, 2023], [0.5, -1, 2023], [1, 0, 2024], [1.5, -1, 2024], [2, 0, 2024]]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_of_folders_give_columns(
    named: Any, months: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / "out.jsonl"
    pattern = f"{months}/*/*/part.{suffix}"
    assert predict_file(named, pattern, out, ["c", "month", "a"]) == 6
    found = read(out)
    assert predictions(out)[:5] == margins(named, EXPECTED)
    assert [str(row["month"]) for row in found] == ["12", "12", "1", "1", "2", "2"]
    assert [float(row["a"]) for row in found] == [0, 0.5, 1, 1.5, 2, 2.5]
    for other in ("csv", "parquet"):  # one of them is left
        if other != suffix:
            for path in months.rglob(f"*.{other}"):
                path.unlink()
    assert predict_file(named, months, tmp_path / "all.jsonl") == 6
    assert predictions(tmp_path / "all.jsonl") == predictions(out)
    assert predict_file(named, months, tmp_path / "parts", target_format="jsonl") == 6
    paths = sorted((tmp_path / "parts").rglob("*.jsonl"))
    assert [str(x.relative_to(tmp_path / "parts")) for x in paths] == [
        f"c={year}/month={month}/part.jsonl"
        for year, month in (("2023", "12"), ("2024", "01"), ("2024", "02"))
    ]
    assert [x for path in paths for x in predictions(path)] == predictions(out)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", "jsonl"])
def test_folders_give_labels_nulls_and_columns_that_the_file_has_not(
    tmp_path: Path, suffix: str
) -> None:
    words = build(category_names={1: ("lo", "h/i")})
    out = tmp_path / "out.jsonl"
    found = []
    for name in ("b=lo", "b=h%2Fi", "b=__HIVE_DEFAULT_PARTITION__", "a=9"):
        folder = tmp_path / name
        folder.mkdir()
        own = {"a": [1.0], "c": [5.0], **({"b": ["lo"]} if name == "a=9" else {})}
        table = pa.table(own)
        if suffix == "csv":
            text = [",".join(own), ",".join(str(x[0]) for x in own.values())]
            (folder / "rows.csv").write_text("\n".join(text))
        elif suffix == "jsonl":
            (folder / "rows.jsonl").write_text(json.dumps({k: v[0] for k, v in own.items()}))
        elif suffix == "parquet":
            parquet.write_table(table, folder / "rows.parquet")
        else:
            with pa.ipc.new_file(folder / "rows.arrow", table.schema) as file:
                file.write_table(table)
        predict_file(words, folder / f"rows.{suffix}", out, ["b"])
        found += read(out)
    assert [row["b"] or None for row in found] == ["lo", "h/i", None, "lo"]
    nan = float("nan")
    expected = margins(words, [[1, 0, 5], [1, 1, 5], [1, nan, 5], [1, 0, 5]])
    assert [row["prediction"] for row in found] == expected


def test_a_model_without_names_takes_no_column_of_a_folder(tmp_path: Path) -> None:
    unnamed = build(feature_names=None)
    folder = tmp_path / "run=5"
    folder.mkdir()
    (folder / "rows.csv").write_text("x,y,z\n1,2,3\n")
    predict_file(unnamed, folder / "rows.csv", tmp_path / "out.jsonl", ["run"])
    assert read(tmp_path / "out.jsonl")[0]["run"] == "5"
    np.save(folder / "rows.npy", np.float32([[1, 2, 3]]))
    predict_file(unnamed, folder / "rows.npy", tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").tolist() == margins(unnamed, [[1, 2, 3]])


def test_several_places_are_taken_in_their_order(named: Any, tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.csv"):
        (tmp_path / name).write_text(f"a,b,c,id\n1,2,3,{name}\n")
    out = tmp_path / "out.jsonl"
    places = [tmp_path / "c.csv", str(tmp_path / "[ab].csv")]
    assert predict_file(named, places, out, "id") == 3
    assert [row["id"] for row in read(out)] == ["c.csv", "a.csv", "b.csv"]
    (tmp_path / "x[1].csv").write_text("a,b,c,id\n1,2,3,x\n")  # is a name, not a pattern
    assert predict_file(named, tmp_path / "x[1].csv", out) == 1
    for source, message in (
        ([], "argument 'rows': no files"),
        (tmp_path / "*.parquet", "no file has such a name"),
        ([tmp_path / "a.csv", tmp_path / "no.csv"], "no.csv': there is no such file"),
        ([open(tmp_path / "a.csv", "rb"), tmp_path / "a.csv"], "it is read alone"),
    ):
        assert message in refused(named, source, tmp_path / "new.jsonl")
    said = refused(named, [tmp_path / "a.csv"], tmp_path / "a.csv")
    assert "a.csv' is the file of rows" in said
    with pytest.raises(InputError, match="'a.csv' is the file of rows|is the file of rows"):
        predict_file(named, tmp_path / "?.csv", tmp_path / "b.csv")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.csv").write_text("a,b,c\n1,2,3\n")
    both = [tmp_path / "a.csv", tmp_path / "more" / "a.csv"]
    assert "two files of rows would become 'a.csv'" in refused(named, both, tmp_path / "new")


# -- text -----------------------------------------------------------------------------------------


def pack(data: bytes, suffix: str) -> bytes:
    if suffix == "gz":
        return gzip.compress(data[:40]) + gzip.compress(data[40:])  # two members
    return pa.compress(data, codec="zstd", asbytes=True)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_text_is_read_and_damage_is_told(
    named: Any, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).normal(size=(3000, 3)).astype(np.float32)
    lines = [",".join(map(repr, row)) for row in rows.astype(float).tolist()]
    data = "\n".join(["a,b,c", *lines]).encode()
    objects = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in rows.tolist()]
    for name, text in (("csv", data), ("jsonl", "\n".join(objects).encode())):
        packed = pack(text, suffix)
        path = tmp_path / f"rows.{name}.{suffix}"
        path.write_bytes(packed)
        assert predict_file(named, path, tmp_path / "out.npy", progress=True) == 3000
        assert np.array_equal(np.load(tmp_path / "out.npy"), named.predict(rows))
        broken = bytearray(packed)
        broken[len(packed) // 2 : len(packed) // 2 + 60] = bytes(60)
        for damaged in (packed[: len(packed) * 2 // 3], bytes(broken)):
            path.write_bytes(damaged)
            said = refused(named, path, tmp_path / "new.npy")
            assert f"rows.{name}.{suffix}': line " in said
            assert "cannot be read" in said or "no JSON" in said
        path.write_bytes(packed)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"rows.csv.{suffix}").write_bytes(pack(data, suffix))
    assert predict_file(named, tmp_path / "in", tmp_path / "out") == 3000
    assert [x.name for x in (tmp_path / "out").iterdir()] == ["rows.csv"]
    (tmp_path / f"x.parquet.{suffix}").touch()
    said = refused(named, tmp_path / f"x.parquet.{suffix}", tmp_path / "new.npy")
    assert f"only text may be compressed as '.{suffix}', and parquet is none; unpack" in said
    if suffix == "zst":
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        said = refused(named, path, tmp_path / "new.npy")
        assert ".zst: pyarrow is needed for this; pip install 'tvm-forest[streams]'" in said


@pytest.mark.parametrize("with_arrow", [True, False])
def test_signs_and_missing_texts_are_those_that_are_said(
    named: Any, tmp_path: Path, with_arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_arrow:
        monkeypatch.setattr("tvm_forest.streams.text_blocks.has_arrow", bool)
    out, path = tmp_path / "out.jsonl", tmp_path / "rows.csv"
    path.write_text("a;b;c;d\n0,25;-1e0;NA;NA\n-999;1,5e1;n/a;x\n")
    signs: Any = {"delimiter": ";", "decimal": ",", "missing": ["NA", "-999", "n/a"]}
    predict_file(named, path, out, ["d"], **signs)
    nan = float("nan")
    assert predictions(out) == margins(named, [[0.25, -1, nan], [nan, 15, nan]])
    assert [row["d"] for row in read(out)] == ["NA", "x"]  # kept texts stay what they are
    path.write_text("1,5;2;3\n1.5;2;3\n")
    said = refused(named, path, tmp_path / "new.jsonl", delimiter=";", decimal=",")
    assert "line 2: '1.5' is no number" in said
    (tmp_path / "rows.jsonl").write_text('{"a": "NA", "b": 1, "c": 2}')
    predict_file(named, tmp_path / "rows.jsonl", out, missing="NA")
    assert predictions(out) == margins(named, [[nan, 1, 2]])
    for options, message in (
        ({"delimiter": ";;"}, "argument 'delimiter': ';;' is no sign"),
        ({"delimiter": '"'}, "is no sign"),
        ({"decimal": ","}, "argument 'decimal': ',' is between the fields as well"),
        ({"decimal": "1"}, "argument 'decimal': '1' is no sign"),
    ):
        assert message in refused(named, path, tmp_path / "new.jsonl", **options)
    np.save(tmp_path / "rows.npy", np.zeros((1, 3)))
    said = refused(named, tmp_path / "rows.npy", tmp_path / "new.jsonl", missing=["NA"])
    assert "argument 'missing': ('NA',), and only CSV, tab" in said


# -- columns of Arrow -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_decimals_and_dictionaries_of_numbers_are_numbers(
    named: Any, tmp_path: Path, suffix: str
) -> None:
    digits = ["0.1", None, "12345678901234567890.12345678", "-0.00000001"]
    decimals = pa.array([None if x is None else Decimal(x) for x in digits], pa.decimal128(38, 8))
    table = pa.table(
        {
            "a": decimals,
            "b": pa.array([1.5, None, 1.5, -2.0]).dictionary_encode(),
            "c": decimals.cast(pa.decimal256(50, 10)),
        }
    )
    path, out = tmp_path / f"rows.{suffix}", tmp_path / "out.jsonl"
    if suffix == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    predict_file(named, path, out)
    column = [np.nan if x is None else float(x) for x in digits]
    rows = np.array([column, [1.5, np.nan, 1.5, -2], column]).T
    assert predictions(out) == named.predict(rows).tolist()


# -- all columns ----------------------------------------------------------------------------------


def test_all_columns_are_kept(named: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    table = pa.table({"id": [7], "a": [1.5], "b": [2.0], "c": [3.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("id,a,b,c\n7,1.50,2,3\n")
    predict_file(named, tmp_path / "rows.parquet", out, "all")
    assert read(out) == [{"id": 7, "a": 1.5, "b": 2.0, "c": 3.0, "prediction": 2.625}]
    predict_file(named, tmp_path / "rows.csv", out, ["all"])
    assert read(out) == [{"id": "7", "a": "1.50", "b": "2", "c": "3", "prediction": 2.625}]
    predict_file(build(feature_names=None), tmp_path / "rows.csv", out, "id")
    assert "4 columns are left" in refused(
        build(feature_names=None), tmp_path / "rows.csv", tmp_path / "new.csv", keep="all"
    )
    (tmp_path / "rows.csv").write_text("x,y,z\n1.5,2,3\n")
    predict_file(build(feature_names=None), tmp_path / "rows.csv", out, "all")
    assert list(read(out)[0]) == ["x", "y", "z", "prediction"]
    (tmp_path / "all.csv").write_text("all,a,b,c\n7,1.5,2,3\n")
    predict_file(named, tmp_path / "all.csv", out, "all")  # a column has this name
    assert list(read(out)[0]) == ["all", "prediction"]
    np.save(tmp_path / "rows.npy", np.zeros((1, 3)))
    said = refused(named, tmp_path / "rows.npy", tmp_path / "new.csv", keep="all")
    assert "its columns have no names, so none can be kept" in said


def test_all_columns_are_those_of_all_files_and_lines(named: Any, tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b,c\n1,2,3\n")
    (tmp_path / "2.csv").write_text("c,b,a\n3,2,1\n")
    assert predict_file(named, tmp_path / "?.csv", tmp_path / "out.jsonl", "all") == 2
    rows = read(tmp_path / "out.jsonl")
    assert rows[0] == rows[1]
    (tmp_path / "3.csv").write_text("a,b,c,d\n1,2,3,4\n")
    said = refused(named, tmp_path / "?.csv", tmp_path / "new.jsonl", keep="all")
    assert "3.csv': column 'd', which the first file lacks" in said
    lines = ['{"a": 1, "b": 2, "c": 3}\n'] * 1000 + ['{"d": 1}\n']
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    said = refused(named, tmp_path / "rows.jsonl", tmp_path / "new.jsonl", keep="all")
    assert "line 1001: column 'd', which the first 1000 lines lack, and all columns" in said


# -- rows that are left out -----------------------------------------------------------------------

BAD_LINES = {
    "csv": 'a,b,c,id\n1,2,3,p\n1,2,x,q\n1,2,3\n\n1,,3,r\n4,5,6,s\n1,"2"2,3,t\n1,2,3,u,5\n7,8,9,v\n',
    "jsonl": '{"a":1,"b":2,"c":3,"id":"p"}\n{"a":1,"b":2,"c":"x","id":"q"}\n[1]\n\n'
    '{"a":1,"b":null,"c":3,"id":"r"}\n{"a":4,"b":5,"c":6,"id":"s"}\n'
    '{"a":1,\n{"b":"y"}\n{"a":7,"b":8,"c":9,"id":"v"}\n',
}
REASONS = {
    "csv": [
        (1, "line 3: 'x' is no number; leave"),
        (2, "line 4: 3 fields, but the first line has 4"),
        (3, "column 1 ('b') is NaN"),
        (5, "line 8: damaged: "),
        (6, "line 9: 5 fields"),
    ],
    "jsonl": [
        (1, "line 2: 'x' is no number"),
        (2, "line 3: no object of names"),
        (3, "column 1 ('b') is NaN"),
        (5, "line 7: no JSON"),
        (6, "line 8: 'y' is no number"),
    ],
}


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 1000])
@pytest.mark.parametrize("suffix", BAD_LINES)
def test_bad_rows_are_left_out_and_told(
    strict: Any, tmp_path: Path, suffix: str, batch_rows: int
) -> None:
    path, out, rejects = (tmp_path / x for x in (f"rows.{suffix}", "out.jsonl", "bad.jsonl"))
    path.write_text(BAD_LINES[suffix])
    count = predict_file(
        strict, path, out, ["id"], rejects=rejects, batch_rows=batch_rows, progress=True
    )
    assert (count, count.skipped) == (3, 5)
    assert [row["id"] for row in read(out)] == ["p", "s", "v"]
    assert predictions(out) == margins(strict, [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    found = read(rejects)
    for row, (number, reason) in zip(found, REASONS[suffix], strict=True):
        assert row["file"] == str(path) and row["row"] == number
        assert row["reason"].startswith(reason)
    skipped = predict_file(strict, path, out, bad_rows="skip", batch_rows=batch_rows).skipped
    assert skipped == 5
    said = refused(strict, path, tmp_path / "new.jsonl", batch_rows=batch_rows)
    assert "line " in said


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_rejects_are_written_in_any_format_with_columns(
    strict: Any, tmp_path: Path, suffix: str
) -> None:
    rows = np.ones((500, 3), np.float32)
    bad = np.random.default_rng(0).permutation(500)[:200]
    rows[bad, bad % 3] = np.nan
    parquet.write_table(pa.table(dict(zip(NAMES, rows.T, strict=True))), tmp_path / "rows.parquet")
    out, rejects = tmp_path / "out.parquet", tmp_path / f"bad.{suffix}"
    source = tmp_path / "rows.parquet"
    count = predict_file(strict, source, out, rejects=rejects, batch_rows=171)
    assert (count, count.skipped) == (300, 200) and len(parquet.read_table(out)) == 300
    if suffix in ("csv", "tsv"):
        lines = rejects.read_text().splitlines()
        sign = "," if suffix == "csv" else "\t"
        assert lines[0].split(sign) == ["file", "row", "reason"]
        numbers = [int(line.split(sign)[1]) for line in lines[1:]]
    elif suffix == "jsonl":
        numbers = [row["row"] for row in read(rejects)]
    elif suffix == "parquet":
        numbers = parquet.read_table(rejects)["row"].to_pylist()
    else:
        numbers = pa.ipc.open_file(rejects).read_all()["row"].to_pylist()
    assert numbers == sorted(bad.tolist())
    (tmp_path / "good.csv").write_text("a,b,c\n1,2,3\n")
    assert predict_file(strict, tmp_path / "good.csv", out, rejects=rejects).skipped == 0
    assert rejects.exists()
    (tmp_path / "bad.csv").write_text("a,b,c\n,2,3\n")
    assert predict_file(strict, tmp_path / "bad.csv", out, bad_rows="skip") == 0
    assert parquet.read_table(out).schema.field("prediction").type == pa.float32()


def test_what_is_wrong_with_all_rows_is_refused_also_where_bad_ones_are_left_out(
    strict: Any, tmp_path: Path
) -> None:
    path, rejects = tmp_path / "rows.csv", tmp_path / "bad.csv"
    for data, message in (
        (b"a,b\n1,2\n", "no column 'c'"),
        (b"a,b,c\n1,2,3\n1,2,\xff\n", "'utf-8' codec"),
        (b'a,b,c\n1,2,3\n1,"2,3\n4,5,6\n', "line 4: damaged: unexpected end"),
    ):
        path.write_bytes(data)
        said = refused(strict, path, tmp_path / "new.jsonl", rejects=rejects)
        assert message in said
    path.write_text("a,b,c\n1,2,x\n")
    for place, message in (
        (path, "is a file of rows or of predictions"),
        (tmp_path / "new.jsonl", "is a file of rows or of predictions"),
        (tmp_path / "bad.npy", ".npy holds numbers alone"),
        (tmp_path / "bad.txt", "suffix '.txt' is unknown"),
        (tmp_path / "no" / "bad.csv", "argument '--rejects': cannot write"),
    ):
        said = refused(strict, path, tmp_path / "new.jsonl", rejects=place)
        assert message in said
    said = refused(strict, path, tmp_path / "new.jsonl", bad_rows="drop")
    assert "argument 'bad_rows': 'drop' is unknown (have: refuse, skip)" in said


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.zst"])
def test_a_full_disk_is_told_and_neither_file_is_left(
    strict: Any, tmp_path: Path, suffix: str
) -> None:
    drawn = np.random.default_rng(0).random(8000).tolist()  # which cannot be compressed much
    limits, out, bad = resource.getrlimit(resource.RLIMIT_FSIZE), f"out.{suffix}", f"bad.{suffix}"
    for name, row in {"rejects": "x{},2,3\n", "output": "{},2,3\n"}.items():
        (tmp_path / "rows.csv").write_text("a,b,c\n" + "".join(map(row.format, drawn)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            said = refused(
                strict, tmp_path / "rows.csv", tmp_path / out, keep="a", rejects=tmp_path / bad
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert f"argument '--{name}': cannot write" in said and "File too large" in said


def test_the_command_says_how_many_rows_are_left_out(
    strict: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = tmp_path / "model.tvmf", tmp_path / "rows.csv"
    strict.save(model)
    path.write_text(BAD_LINES["csv"])
    words = ["predict", str(model), str(path), str(path), "-o", str(tmp_path / "out.jsonl")]
    assert main([*words, "--keep", "all", "--rejects", str(tmp_path / "bad.csv")]) == 0
    assert capsys.readouterr().err == (
        f"tvm-forest: 10 bad rows left out; {tmp_path / 'bad.csv'} says why\n"
    )
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == ["p", "s", "v"] * 2
    path.write_text("a;b;c\n1,5;NA;3\n")
    more = ["--delimiter", ";", "--decimal", ",", "--missing", "NA", "--bad-rows", "skip"]
    assert main(["predict", str(model), str(path), *more]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("prediction\n", "tvm-forest: 1 bad rows left out\n")
