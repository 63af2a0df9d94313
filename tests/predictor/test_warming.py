"""Code that is there before the first model of its kind."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest, full_forest
from scheduled_models import forest_named
from tvm_forest.errors import BuildError, InputError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.predictor.compiling import find_known
from tvm_forest.predictor.live import drawn_models, warming
from tvm_forest.system import code_cache
from tvm_forest.system.archive import Archive
from tvm_forest.target import parse_target
from tvm_forest.targets import bundles


def draw_few(patch: pytest.MonkeyPatch, folder: Path, depth: int, *rounds: int) -> None:
    """Let `warm` draw full trees of one depth only, for a cache in a folder."""
    patch.setenv(code_cache.VARIABLE, str(folder / "cache"))
    patch.setattr(drawn_models, "DEPTHS", (depth,))
    patch.setattr(drawn_models, "SPLITS", (1.0,))
    patch.setattr(drawn_models, "ROUNDS", rounds)


ALONE = """
import sys, warnings
sys.modules["tvm"] = None  # as where it is not installed
import pickle
from pathlib import Path
import numpy as np
import tvm_forest
warnings.simplefilter("error")
forest = pickle.loads(Path(sys.argv[1]).read_bytes())
rows, wanted = map(np.load, sys.argv[2:])
for wait in (True, False):
    predictor = tvm_forest.build(forest, wait=wait)
    assert predictor.ready and predictor.target.to_dict() == {TARGET}, predictor.target
    for n_rows in (1, 20, 40, 100, 200):
        assert np.array_equal(predictor.predict_margin(rows[:n_rows]), wanted[:n_rows]), n_rows
"""


@pytest.mark.slow
def test_models_like_one_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in this process, nor by a bundle where TVM is not installed."""
    draw_few(monkeypatch, tmp_path, 3, 100, 120)
    known = drawn_forest(3, 2, dtype="float64")  # compiles fast
    target, file = {"kind": "llvm", "mcpu": "x86-64-v2"}, tmp_path / "of_v2.kernels"
    told = list[tuple[int, int]]()
    first = tvm_forest.warm(known, target, out=file, done=lambda *x: told.append(x))
    drawn = drawn_models.list_drawn(canonicalize(known))
    asked = sum(x.is_compiled for x in drawn)
    assert first.models == len(drawn)
    assert told == [(k, len(drawn) + asked) for k in range(1, len(drawn) + asked + 1)]
    assert 0 < first.compiled <= asked
    assert tvm_forest.warm(known, target) == warming.Warmed(len(drawn), compiled=0)
    model = drawn_models.Drawn(drawn_models.TreeShape(3), 110, drawn_models.BINS)
    forest = drawn_models.draw_forest(canonicalize(known), model)
    assert find_known(BuildRequest.of(forest, None, parse_target(target))) is not None
    rows = hard_rows(forest, 200)
    wanted = forest.predict_reference(rows)[:, 0]
    for n_rows in (1, 20, 40, 100, 200):
        found = tvm_forest.build(forest, target).predict_margin(rows[:n_rows])
        assert np.array_equal(found, wanted[:n_rows])
    check_alone(tmp_path, file, target, forest, rows)


def check_alone(folder: Path, bundle: Path, target: Any, forest: Forest, rows: Any) -> None:
    """See a bundle give the code of a model to a process without TVM and without a cache."""
    (folder / "model").write_bytes(pickle.dumps(forest))
    np.save(folder / "rows.npy", rows)
    np.save(folder / "wanted.npy", forest.predict_reference(rows)[:, 0])
    arguments = [str(folder / name) for name in ("model", "rows.npy", "wanted.npy")]
    source = ALONE.replace("{TARGET}", str(target))
    command = [sys.executable, "-c", source, *arguments]
    environment = {**os.environ, bundles.VARIABLE: str(bundle), code_cache.VARIABLE: "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def written_bundle(folder: Path) -> Path:
    """A bundle with one entry that is not code."""
    target = parse_target({"kind": "llvm", "mcpu": "x86-64-v2"})
    bundles.write_bundle(folder / "b.kernels", target, [("key", Archive({"code": "none"}, {}))])
    return folder / "b.kernels"


def test_a_bundle_returns_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        monkeypatch.setenv(bundles.VARIABLE, str(written_bundle(tmp_path)))
    finally:
        os.umask(before)
    (found,) = bundles.find_bundles(parse_target("llvm"))
    entry = found.read("key")
    assert entry is not None and entry.manifest == {"code": "none"}
    assert found.read("another") is None
    assert bundles.find_bundles(parse_target({"kind": "llvm", "mcpu": "x86-64-v3"})) == []
    assert bundles.find_bundles(parse_target({"kind": "cuda", "arch": "sm_90"})) == []
    assert len(bundles.find_bundles(found.target)) == 1


UNUSED: dict[str, Callable[[Path], object]] = {
    "not there": lambda file: file.unlink(),
    "no archive": lambda file: file.write_bytes(b"no bundle"),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-40]),
    "empty": lambda file: file.write_bytes(b""),
    "others may write it": lambda file: file.chmod(0o666),
    "another version": lambda file: file.write_bytes(another_version()),
}


def another_version() -> bytes:
    """A bundle that other sources have written."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as members:
        members.writestr(bundles.MANIFEST, json.dumps({"sources": "0", "target": {"kind": "llvm"}}))
    return data.getvalue()


@pytest.mark.parametrize("name", UNUSED)
def test_a_file_that_is_no_bundle_of_ours_is_told_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, forest = written_bundle(tmp_path), full_forest(2, 2)
    UNUSED[name](file)
    monkeypatch.setenv(bundles.VARIABLE, str(file))
    with pytest.warns(RuntimeWarning, match="is not used .*tvm-forest warm --out"):
        predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    assert predictor.predict(np.zeros((3, forest.n_features), np.float32)).shape == (3,)


def test_a_damaged_entry_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written_bundle(tmp_path)
    with zipfile.ZipFile(file) as members:
        entry = members.read("key")
    with zipfile.ZipFile(file, "a") as members, pytest.warns(UserWarning, match="Duplicate"):
        members.writestr("key", entry[:-1] + b"?")
    monkeypatch.setenv(bundles.VARIABLE, str(file))
    (found,) = bundles.find_bundles(parse_target("llvm"))
    assert found.read("key") is None


def test_a_bundle_that_cannot_be_written_is_refused_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(InputError, match="warm: argument 'out': cannot write"):
        tvm_forest.warm(full_forest(3, 2), out=tmp_path / "no folder" / "b.kernels")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("shape", [{"depth": 3}, {"leaves": 7}, {"depth": 5, "split": 0.9}])
@pytest.mark.parametrize("like", [drawn_forest(4, 3), drawn_forest(6, 2, base=[0.5, 0.1, 0.2])])
def test_drawn_models_are_like_the_one_at_hand(like: Forest, shape: Any) -> None:
    like, of_trees = canonicalize(like), drawn_models.TreeShape(**shape)
    drawn = drawn_models.draw_forest(like, drawn_models.Drawn(of_trees, 20, drawn_models.FEW))
    assert drawn.n_trees == 20 * like.round_size
    assert (drawn.n_features, drawn.n_outputs) == (like.n_features, like.n_outputs)
    leaves = {(len(tree) + 1) // 2 for tree in of_trees.grow()}
    assert set(drawn.leaf_counts.tolist()) == leaves
    assert drawn.depths.max() == of_trees.depth or of_trees.leaves


def test_trees_are_drawn_to_grow_as_those_of_the_model_do() -> None:
    """By levels or by leaves; and with as many thresholds as there may be."""
    base = canonicalize(drawn_forest(4, 3, n_features=5))
    for shape in (drawn_models.TreeShape(6, 0.92), drawn_models.TreeShape(leaves=31, bend=0.8)):
        for cuts in (drawn_models.BINS, drawn_models.MANY):
            model = drawn_models.draw_forest(base, drawn_models.Drawn(shape, 200, cuts))
            drawn = drawn_models.list_drawn(model)
            assert {bool(x.shape.leaves) for x in drawn} == {bool(shape.leaves)}
            assert max(x.cuts for x in drawn) == cuts


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no cache": ({}, "the cache of code is off; let TVM_FOREST_CACHE name"),
    "a GPU": ({"target": {"kind": "cuda", "arch": "sm_90"}}, "'target': code for .* is not kept"),
    "no process": ({"processes": 0}, "argument 'processes': 0; use 1 or more"),
    "half a process": ({"processes": 0.5}, "argument 'processes': 0.5; use 1 or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, "off")
    arguments, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        tvm_forest.warm(drawn_forest(2, 2), **arguments)


def test_trees_that_are_not_drawn_are_refused() -> None:
    linear = forest_named("lightgbm linear_holes", seen=False)
    with pytest.raises(InputError, match="argument 'model': it has linear leaves"):
        tvm_forest.warm(linear)


def test_a_folder_that_is_not_used_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match="the cache of code may be written to by others"):
        tvm_forest.warm(full_forest(3, 2))


def test_without_an_interpreter_nothing_is_warmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few(monkeypatch, tmp_path, 3, 100)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(BuildError, match="no process can be started"):
        tvm_forest.warm(full_forest(3, 2))
