"""Rows and predictions in stores: S3 by pyarrow, others by fsspec; text that is compressed."""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tvm_forest
from forests import Split, forest_of
from s3_store import Store, serve_objects
from tvm_forest import predict_file
from tvm_forest.cli import main
from tvm_forest.errors import InputError
from tvm_forest.streams.places import addresses
from tvm_forest.streams.reading import read_rows

NAMES = ("a", "b", "c")
TREES = [Split(0, 0.5, -1.0, Split(2, 3.5, 0.5, 4.0)), Split(1, -0.25, 0.5, 2.0), 0.125]
ROWS = np.random.default_rng(0).normal(size=(3000, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def named() -> Any:
    return tvm_forest.build(forest_of(TREES, feature_names=NAMES), schedule=lambda start: start)


@pytest.fixture
def s3() -> Iterator[Store]:
    with serve_objects() as store:
        yield store


@pytest.fixture
def memory() -> Iterator[Any]:
    """What fsspec keeps in memory: a dict of files."""
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def to_table(rows: Any = ROWS) -> pa.Table:
    ids = {"id": np.arange(len(rows))}
    return pa.table({**{name: rows[:, i] for i, name in enumerate(NAMES)}, **ids})


def to_bytes(suffix: str, table: pa.Table) -> bytes:
    """Return a file of rows, of several row groups."""
    sink = pa.BufferOutputStream()
    if suffix == "parquet":
        parquet.write_table(table, sink, row_group_size=1000)
    elif suffix == "arrow":
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table, 1000)
    else:
        text = table.to_pandas().to_csv(index=False).encode()
        sink.write(gzip.compress(text) if suffix == "csv.gz" else text)
    return bytes(sink.getvalue())


def predictions(data: bytes) -> Any:
    lines = [json.loads(line) for line in data.decode().splitlines()]
    return np.float32([line["prediction"] for line in lines])


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        predict_file(*arguments, **options)
    return str(error.value)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "csv.gz"])
def test_rows_of_stores_give_the_bits_of_predict(
    named: Any, s3: Store, memory: Any, suffix: str
) -> None:
    data = to_bytes(suffix, to_table())
    s3.objects[f"rows/{suffix}/a=9/part.{suffix}"] = data
    memory.pipe(f"/rows/part.{suffix}", data)
    source = s3.address(f"rows/{suffix}/a=9/part.{suffix}")
    assert predict_file(named, source, s3.address("made/out.jsonl"), ["id"], batch_rows=700) == 3000
    assert np.array_equal(predictions(s3.objects["made/out.jsonl"]), named.predict(ROWS))
    assert predict_file(named, f"memory://rows/part.{suffix}", "memory://made/out.jsonl") == 3000
    assert predictions(memory.cat("/made/out.jsonl")).tolist() == named.predict(ROWS).tolist()
    asked = s3.asked.count(f"GET rows/{suffix}/a=9/part.{suffix}")
    assert asked < 12, "a row group is one request, and text comes by megabytes"


def test_folders_and_patterns_of_stores_are_those_of_this_machine(
    named: Any, s3: Store, memory: Any, tmp_path: Path
) -> None:
    names = ("in/b=1/x.csv", "in/b=2/x.csv", "in/b=2/.y.csv", "in/b=2/z.tsv", "in/_SUCCESS", "i/x")
    for name in names:
        text = b"a,c\n1,2\n" if name.endswith("csv") else b"a\tc\n0\t1\n"
        s3.objects[f"here/{name}"] = text
        memory.pipe(f"/here/{name}", text)
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_bytes(text)
    stores = (s3.address, "memory://{}".format, lambda x: tmp_path / x)
    found = []
    for address in stores:
        own = []
        for pattern in ("in", "in/*/x.csv", "in/**/*.?sv", "in/b=[2-9]", "in/b=2/*.tsv"):
            pattern = pattern.replace("?", "[ct]")  # which begins the options of an address
            out = tmp_path / "out.jsonl"
            count = predict_file(named, address(f"here/{pattern}"), out, ["b"])
            own.append((count, out.read_bytes()))
        assert predict_file(named, address("here/in"), address("made")) == 3
        with pytest.raises(InputError, match="there already; remove it, or name a new folder"):
            predict_file(named, address("here/in"), address("made"))
        with pytest.raises(InputError, match="is in the folder of the rows"):
            predict_file(named, address("here/in"), address("here/in/made"))
        for wrong in ("here/none.csv", "here/*.none", "none/*/x.csv"):
            with pytest.raises(InputError, match="there is no such file|no file has such a name"):
                predict_file(named, address(wrong), tmp_path / "new.csv")
        found.append(own)
    assert found[0] == found[1] == found[2]
    made = {f"made/{name}" for name in ("b=1/x.csv", "b=2/x.csv", "b=2/z.tsv")}
    assert made == {name for name in s3.objects if name.startswith("made")}
    assert {f"/{name}" for name in made} == set(memory.find("/made"))
    for name in made:
        assert s3.objects[name] == memory.cat(f"/{name}") == (tmp_path / name).read_bytes()


def test_nothing_appears_of_what_is_broken_off(
    named: Any, s3: Store, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, old = to_bytes("csv", to_table()), b"as it was"
    s3.objects |= {"b/rows.csv": rows, "b/bad.csv": rows + b"x,1,2,3\n", "b/out.csv": old}
    memory.pipe("/out.csv", old)
    for target in (s3.address("b/out.csv"), "memory://out.csv"):
        said = refused(named, s3.address("b/bad.csv"), target)
        assert "'s3://***@b/bad.csv': line 3002: 'x' is no number" in said
    s3.fails = "PUT"
    said = refused(named, s3.address("b/rows.csv"), s3.address("b/out.csv"))
    assert "cannot write 's3://***@b/out.csv' (OSError: " in said
    assert "nothing is left of it" in said
    s3.fails = "no request"

    def stop(_: Any, stream: Any, size: int) -> None:
        stream.write(b"the first piece")
        raise KeyboardInterrupt

    monkeypatch.setattr(addresses.shutil, "copyfileobj", stop)
    with pytest.raises(KeyboardInterrupt):
        predict_file(named, s3.address("b/rows.csv"), s3.address("b/out.csv"))
    gc.collect()
    assert s3.objects["b/out.csv"] == memory.cat("/out.csv") == old
    assert not [name for name in s3.asked if name.startswith("POST b/out.csv")][2:]


def test_a_process_whose_upload_is_broken_off_ends(named: Any, s3: Store, tmp_path: Path) -> None:
    code = (
        "import sys, tvm_forest\n"
        "from tvm_forest.streams.places import addresses\n"
        "def stop(_, stream, size):\n"
        "    stream.write(b'the first piece')\n"
        "    raise ValueError('stopped')\n"
        "addresses.shutil.copyfileobj = stop\n"
        "p = tvm_forest.load_predictor(sys.argv[1])\n"
        "try: tvm_forest.predict_file(p, sys.argv[2], sys.argv[3])\n"
        "except tvm_forest.errors.ForestError as e: print(e)\n"
    )
    named.save(tmp_path / "m.tvmf")
    (tmp_path / "rows.csv").write_bytes(to_bytes("csv", to_table()))
    s3.objects["b/out.csv"] = b"as it was"
    paths = [tmp_path / "m.tvmf", tmp_path / "rows.csv", s3.address("b/out.csv")]
    command = [sys.executable, "-c", code, *map(str, paths)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "(ValueError: stopped); nothing is left of it" in ended.stdout
    assert s3.objects["b/out.csv"] == b"as it was"


def test_a_full_disk_of_this_machine_is_told_of_what_would_be_sent(
    named: Any, memory: Any, tmp_path: Path
) -> None:
    code = (
        "import resource, sys, tvm_forest\n"
        "p = tvm_forest.load_predictor(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: tvm_forest.predict_file(p, sys.argv[2], 'memory://out.csv')\n"
        "except tvm_forest.errors.ForestError as e: print(e)\n"
        "import fsspec; print(fsspec.filesystem('memory').find('/'))\n"
    )
    named.save(tmp_path / "m.tvmf")
    (tmp_path / "rows.csv").write_bytes(to_bytes("csv", to_table()))
    command = [sys.executable, "-c", code, str(tmp_path / "m.tvmf"), str(tmp_path / "rows.csv")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
    assert "predict: argument '--output': temporary files cannot be written in " in said
    assert said.endswith("`ulimit -f` shows\n[]\n")


def test_the_command_takes_addresses_of_rows_predictions_and_rejects(
    named: Any, s3: Store, tmp_path: Path, capsys: Any
) -> None:
    named.save(tmp_path / "m.tvmf")
    s3.objects["b/rows.csv"] = b"a,b,c\n1,2,3\nx,2,3\n4,5,6\n"
    local = (tmp_path / "rows.csv").as_uri()
    (tmp_path / "rows.csv").write_bytes(b"a,b,c\n7,8,9\n")
    words = ["predict", str(tmp_path / "m.tvmf"), s3.address("b/rows.csv"), local]
    words += ["-o", s3.address("b/out.csv.gz"), "--rejects", s3.address("b/bad.jsonl")]
    assert main(words) == 0
    expected = named.predict(np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])).tolist()
    lines = gzip.decompress(s3.objects["b/out.csv.gz"]).decode().split()
    assert lines == ["prediction", *map(str, expected)]
    (reject,) = map(json.loads, s3.objects["b/bad.jsonl"].splitlines())
    assert (reject["file"], reject["row"]) == ("s3://***@b/rows.csv", 1)
    assert "left out; s3://***@b/bad.jsonl says why\n" in capsys.readouterr().err
    for option in ("-o", "--rejects"):
        words[words.index(option) + 1] = s3.address("b/rows.csv")
        assert main(words) == 2
        assert "name another one" in capsys.readouterr().err
    s3.objects["b/rows.csv"] = b"a,b,c\n1,2,3\n"
    assert read_rows(s3.address("b/rows.csv"), named.forest, "tune").tolist() == [[1, 2, 3]]


def test_what_is_missing_for_an_address_is_named(
    named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    assert "Protocol not known: odd" in refused(named, "odd://x/rows.csv", out)
    said = refused(named, "s3://b/rows.csv?region=x&odd=1", out)
    assert "odd" in said
    assert "or copy the file to this machine" in said
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n")
    assert "is on a web server" in refused(
        named, tmp_path / "rows.csv", "http://localhost/out.csv"
    ) or not _has("aiohttp")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    said = refused(named, "https://name:secret@host/rows.csv?token=secret", out)
    assert "'https://***@host/rows.csv': no library opens such addresses" in said
    assert "aiohttp" in said
    assert "secret" not in said
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert "pip install fsspec, or copy" in refused(named, "memory://rows.csv", out)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = refused(named, "s3://b/rows.csv", out)
    assert "'s3://b/rows.csv': pyarrow is needed for this; pip install 'tvm-forest[stream" in said
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def _has(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


# -- compressed text ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv.gz", "csv.zst", "tsv.GZ", "jsonl.zst"])
def test_predictions_are_compressed_as_the_name_says(
    named: Any, tmp_path: Path, suffix: str
) -> None:
    plain, packed = tmp_path / f"out.{suffix.partition('.')[0]}", tmp_path / f"out.{suffix}"
    sources = []
    for number in range(2):
        sources.append(tmp_path / f"rows{number}.csv")
        sources[-1].write_bytes(to_bytes("csv", to_table()))
    for target in (plain, packed):
        assert predict_file(named, sources, target, ["id"], batch_rows=500) == 6000
    kind = "gzip" if suffix.lower().endswith("gz") else "zstd"
    with pa.input_stream(str(packed), compression=kind) as file:
        assert file.read() == plain.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size / 3
    before = packed.read_bytes()
    predict_file(named, sources, packed, ["id"], batch_rows=500)
    assert packed.read_bytes() == before
    sources[1].write_text("a,b,c\n1,2,x\n")
    assert "'x' is no number" in refused(named, sources, packed)
    assert packed.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {
        "rows0.csv", "rows1.csv", plain.name, packed.name
    }  # fmt: skip


def test_what_is_no_text_is_not_compressed(named: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    for name in ("out.parquet.gz", "out.npy.zst"):
        said = refused(named, tmp_path / "rows.npy", tmp_path / name)
        assert "only text may be compressed as" in said
    said = refused(named, tmp_path / "rows.npy", tmp_path / "a.csv", rejects=tmp_path / "b.npy.gz")
    assert "only text may be compressed as '.gz', and npy is none" in said
    assert "suffix '' is unknown" in refused(named, tmp_path / "rows.npy", tmp_path / "out.gz")
