"""A saved predictor comes back with the same bits, or its file is refused."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quick_builds
import shapley
import tvm_forest
from bad_inputs import IS_AMD, ON_X86
from forests import drawn_forest
from models import MODELS
from tvm_forest.compiler import compile_forest
from tvm_forest.errors import (
    BuildError,
    ForestError,
    InputError,
    ModelFormatError,
    UnsupportedModel,
)
from tvm_forest.forest import Forest
from tvm_forest.forest.fields import from_fields, to_fields
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import CategoryRule
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.predictor import contributions, saving
from tvm_forest.runtime.linked import LinkedLibrary
from tvm_forest.runtime.results import OUTPUTS
from tvm_forest.system import archive

FOREST = drawn_forest(12, 4, base=(0.1, 0.2), link="softmax", label_rule="argmax_margin", seed=3)
NAMED = replace(FOREST, labels=np.array(["no", "yes"]), feature_names=("a", "b", "c", "d"))
ROWS = hard_rows(FOREST, 65, seed=1)
START = tvm_forest.new_schedule(FOREST)
SCHEDULES = {
    "parallel rows": START.tile("batch", "b0", "b1", 16).parallel("b0"),
    "ranked": START.tile("batch", "b0", "b1", 16).represent_as("ranked"),
    "tiles of nodes": START.tile_nodes(4).represent_as("sparse"),
    "padded, sorted trees": START.pad_trees("tree").sort_trees("depth"),
    "parallel trees": START.tile("tree", "t0", "t1", 3)
    .reorder("t0", "batch", "class", "t1")
    .parallel("t0"),
}
LIBRARIES = ("xgboost", "lightgbm", "sklearn", "treelite", "onnx", "pandas", "scipy")
ALONE = f"""
import pickle, sys
sys.modules.update(dict.fromkeys({LIBRARIES}))  # their import fails from now on
import numpy as np
import tvm_forest
path, rows, results = sys.argv[1:]
if path.endswith(".pickle"):
    predictor = pickle.load(open(path, "rb"))
else:
    predictor = tvm_forest.load_predictor(path)
np.save(results, predictor.predict(np.load(rows)))
"""
FRESH = """
import pickle, sys
way, path, library = sys.argv[1:]
if way == "loaded":
    import tvm_forest
    made = tvm_forest.load_predictor(path)
else:
    made = pickle.load(open(path, "rb"))
made.export_library(library)
made.save(path)
assert made.rounds(0, 1) is made.rounds(0, 1) is not made
assert len(pickle.dumps(made)) > made.model_bytes
"""
BESIDE = """
import ctypes, sys
import numpy as np
import tvm, tvm_forest
path, library, rows, results = sys.argv[1:]
ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
np.save(results, tvm_forest.load_predictor(path).predict(np.load(rows), n_jobs=2))
"""


@functools.cache
def predictor() -> tvm_forest.Predictor:
    return tvm_forest.build(NAMED, schedule=START)


@functools.cache
def saved() -> bytes:
    return saving.to_bytes(predictor())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.tvmf"
    path.write_bytes(saved())
    return path


def results(predictor: Any, rows: Any) -> list[bytes]:
    """The bits of all that a predictor says, on one thread and on two."""
    ways = ("predict", "predict_margin", "apply", "predict_per_tree")
    found = [getattr(predictor, way)(rows, n_jobs=n) for way in ways for n in (1, 2)]
    return [str(array.dtype).encode() + array.tobytes() for array in found]


def changed(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """Write a file anew with another manifest, whose checksum is right."""
    whole = archive.unpack(data, "test")
    change(whole.manifest)
    return archive.pack(whole)


def is_compiled_anew(predictor: tvm_forest.Predictor) -> bool:
    return not isinstance(predictor.library, LinkedLibrary)


# -- the way there and back -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "softmax", "logistic", "estimator_classifier"])
@pytest.mark.cases(1)
def test_a_loaded_predictor_gives_the_bits_of_the_saved_one(name: str, tmp_path: Path) -> None:
    start = tvm_forest.new_schedule(MODELS[name]())
    several = {1: start, 16: start.tile("batch", "b0", "b1", 16).parallel("b0")}
    compiled = tvm_forest.build(MODELS[name](), schedule=several)
    compiled.save(tmp_path / "model")
    loaded = tvm_forest.load_predictor(tmp_path / "model", MODELS[name]())
    rows = hard_rows(compiled.forest, 65, seed=2)
    assert results(loaded, rows) == results(compiled, rows)
    assert loaded.schedules == several
    assert loaded.forest.signature == compiled.forest.signature


def functions_in(data: bytes) -> list[set[str]]:
    """The functions of each library of a file."""
    manifest = archive.unpack(data, "test").manifest
    return [set(stored["functions"]) for stored in (manifest, *manifest["others"])]


def test_a_file_holds_what_was_compiled_and_what_is_loaded_compiles_the_rest() -> None:
    compiled = tvm_forest.build(NAMED, schedule=START)
    loaded = saving.from_bytes(saving.to_bytes(compiled))
    assert functions_in(saving.to_bytes(compiled)) == [{"predict"}]
    assert np.array_equal(loaded.apply(ROWS), NAMED.predict_reference(ROWS, "apply"))
    assert functions_in(saving.to_bytes(loaded)) == [{"predict"}, {"apply"}]
    again = saving.from_bytes(saving.to_bytes(loaded))
    assert [[*x.symbols] for x in again.libraries] == [["predict"], ["apply"]]
    assert results(again, ROWS) == results(compiled, ROWS)


def test_contributions_that_were_computed_are_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = shapley.with_cover(drawn_forest(2, 11, seed=2))  # walked, by two functions
    compiled, rows = quick_builds.build(forest), hard_rows(forest, 40)
    names, expected = ["predict"], {}
    for way in ("predict_contributions", "predict_interactions"):
        assert functions_in(saving.to_bytes(compiled)) == [{x} for x in names]
        expected[way] = getattr(compiled, way)(rows)
        names.append(way.removeprefix("predict_"))
    data = saving.to_bytes(compiled)
    assert functions_in(data) == [{x} for x in names]
    with monkeypatch.context() as patch:
        patch.setattr(contributions, "compile_or_load", None)  # which nothing may call
        loaded = saving.from_bytes(data)
        assert saving.to_bytes(loaded) == data
        for way, values in expected.items():
            assert getattr(loaded, way)(rows).tobytes() == values.tobytes()
            assert getattr(loaded, way)(rows[:1]).tobytes() == values[:1].tobytes()
        assert saving.to_bytes(loaded) == data
    without = changed(data, lambda manifest: manifest["others"][0]["code"].pop("block_rows"))
    with pytest.raises(ModelFormatError, match="code of .'contributions'. without its 'block_rows"):
        saving.from_bytes(without)


def test_contributions_are_of_the_model_that_a_loaded_predictor_is_updated_to() -> None:
    forest = shapley.with_cover(FOREST)
    compiled = quick_builds.build(forest)
    compiled.predict_contributions(ROWS)
    loaded = saving.from_bytes(saving.to_bytes(compiled))
    newer = replace(forest, leaf_value=forest.leaf_value * 2)
    loaded.update_leaves(newer)
    expected = quick_builds.build(newer).predict_contributions(ROWS)
    assert loaded.predict_contributions(ROWS).tobytes() == expected.tobytes()


def test_functions_of_two_libraries_share_the_arrays_of_a_file() -> None:
    compiled = tvm_forest.build(NAMED, schedule=START)
    compiled.predict_per_tree(ROWS)
    manifest = archive.unpack(saving.to_bytes(compiled), "test").manifest
    (leaves,) = manifest["others"]
    assert set(leaves["functions"]["per_tree"]) <= set(manifest["functions"]["predict"])


def test_a_file_of_before_with_all_functions_in_one_library_still_loads() -> None:
    schedules, target = predictor().schedules, predictor().target
    request = BuildRequest.of(NAMED, schedules, target)
    compiled = compile_forest(request.with_outputs(*OUTPUTS))
    data = saving.to_bytes(tvm_forest.Predictor(request, compiled))
    loaded = saving.from_bytes(changed(data, lambda manifest: manifest.pop("others")))
    assert results(loaded, ROWS) == results(predictor(), ROWS)
    assert len(loaded.libraries) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("tvm_version", [None, "0.26"], ids=["stored code", "compiled anew"])
@pytest.mark.cases(1)
def test_every_schedule_comes_back(name: str, tvm_version: str | None) -> None:
    compiled = tvm_forest.build(FOREST, schedule=SCHEDULES[name], exact=False)
    data = saving.to_bytes(compiled)
    if tvm_version is not None:
        data = changed(data, lambda m: m["code"]["made_for"].update(tvm=tvm_version))
    loaded = saving.from_bytes(data)
    assert is_compiled_anew(loaded) is (tvm_version is not None)
    assert loaded.schedule == compiled.schedule
    assert results(loaded, ROWS) == results(compiled, ROWS)
    assert np.array_equal(loaded.tolerance(ROWS), compiled.tolerance(ROWS))


def test_a_file_keeps_labels_names_threads_and_signature(tmp_path: Path) -> None:
    compiled = tvm_forest.build(NAMED, schedule=START, n_jobs=2)
    compiled.save(tmp_path / "model")
    loaded = tvm_forest.load_predictor(tmp_path / "model", model=NAMED)
    assert (loaded.n_jobs, loaded.signature) == (2, NAMED.signature)
    assert loaded.forest.feature_names == ("a", "b", "c", "d")
    assert np.array_equal(loaded.predict(ROWS), compiled.predict(ROWS))
    assert loaded.predict(ROWS).dtype == NAMED.labels.dtype
    assert np.array_equal(loaded.forest.predict_reference(ROWS), FOREST.predict_reference(ROWS))


def test_a_loaded_predictor_can_be_saved_and_gives_the_same_file(tmp_path: Path) -> None:
    saving.from_bytes(saved()).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved()


@pytest.mark.slow
def test_two_loaded_predictors_keep_apart() -> None:
    others = [drawn_forest(12, 4, base=(0.1, 0.2), seed=seed) for seed in (5, 6)]
    built = [tvm_forest.build(forest, schedule=lambda start: start) for forest in others]
    both = [saving.from_bytes(saving.to_bytes(predictor)) for predictor in built]
    for forest, loaded in zip(others, both, strict=True):
        assert np.array_equal(loaded.predict_margin(ROWS), forest.predict_reference(ROWS))


def test_without_a_compiler_bitcode_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    data = saving.to_bytes(tvm_forest.build(NAMED, schedule=START))
    assert "code.ll" in archive.unpack(data, "test").parts
    assert results(saving.from_bytes(data), ROWS) == results(predictor(), ROWS)


def test_pickles_and_copies_give_the_same_bits() -> None:
    expected = results(predictor(), ROWS)
    assert results(pickle.loads(pickle.dumps(predictor())), ROWS) == expected
    assert results(copy.deepcopy(predictor()), ROWS) == expected
    assert results(copy.copy(predictor()), ROWS) == expected


def test_joblib_stores_a_predictor(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump(predictor(), tmp_path / "model.joblib", compress=3)
    assert results(joblib.load(tmp_path / "model.joblib"), ROWS) == results(predictor(), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.tvmf", "model.pickle"])
def test_another_process_needs_no_training_library(name: str, tmp_path: Path) -> None:
    path, rows, found = (tmp_path / x for x in (name, "rows.npy", "found.npy"))
    predictor().save(path)
    if name.endswith("pickle"):
        path.write_bytes(pickle.dumps(predictor()))
    np.save(rows, ROWS)
    command = [sys.executable, "-c", ALONE, path, rows, found]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(found), predictor().predict(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["unpickled", "loaded"])
@pytest.mark.cases(1, others="long")
def test_a_predictor_of_a_fresh_process_has_all_methods(way: str, file: Path) -> None:
    expected = saved()
    if way == "unpickled":  # with all that was compiled since it was saved
        file.write_bytes(pickle.dumps(predictor()))
        expected = saving.to_bytes(predictor())
    command = [sys.executable, "-c", FRESH, way, file, file.with_name("model.so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == expected
    assert {"model.so", "model.h"} < {path.name for path in file.parent.iterdir()}


@pytest.mark.slow
@pytest.mark.long
def test_code_of_others_in_the_process_is_not_taken_for_its_own(tmp_path: Path) -> None:
    path, library, rows, found = (tmp_path / x for x in ("a", "b.so", "rows.npy", "found.npy"))
    both = [tvm_forest.build(drawn_forest(30, 5, base=(0.1,), seed=seed)) for seed in (5, 6)]
    both[0].save(path)
    both[1].library.export_library(str(library))  # as TVM writes libraries
    np.save(rows, hard_rows(both[0].forest, 600, seed=1))
    command = [sys.executable, "-c", BESIDE, path, library, rows, found]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(found), both[0].predict(np.load(rows)))


# -- the model as values and arrays ---------------------------------------------------------------

RULE = CategoryRule("left", negative_fractions=True, highest=99)
FIELDS: dict[str, dict[str, Any]] = {
    "texts as objects": {"labels": np.array(["no", "yes"], object)},
    "mixed labels": {"labels": np.array([True, None], object)},
    "categories": {"categories": {0: (1, 2), 9: ()}, "category_rule": RULE},
    "known categories": {"known_categories": {1: (0, 7)}, "zero_missing": (0, 2)},
    "derived columns": {"derived": ((0, (1, 2)), (0, ())), "category_rule": RULE},
    "missing numbers": {"missing": np.float32(-999.0), "refuses": ("nan",)},
    "not a number": {"missing": float("inf"), "link_scale": 0.1},
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_forest_survives_as_json_and_arrays(name: str) -> None:
    forest = replace(FOREST, **FIELDS[name])
    values, arrays = to_fields(forest)
    parts = {f"{key}.npy": array for key, array in arrays.items()}
    back = archive.unpack(archive.pack(archive.Archive(values, parts)), "test")
    again = from_fields(back.manifest, {key[:-4]: array for key, array in back.parts.items()})
    plain = replace(forest, missing=None if forest.missing is None else float(forest.missing))
    if forest.labels is not None:
        assert again.labels is not None and again.labels.dtype == object
        assert again.labels.tolist() == forest.labels.tolist()
        again, plain = replace(again, labels=None), replace(plain, labels=None)
    assert again.signature == plain.signature


def test_labels_that_are_other_objects_are_refused() -> None:
    odd = replace(FOREST, labels=np.array([{1}, "yes"], object))
    with pytest.raises(UnsupportedModel, match=r"save: field 'labels': \{1\} of type set"):
        to_fields(odd)


# -- where code is compiled anew ------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["code"]["made_for"]["instructions"].append("avx9000"),
        lambda m: m["code"]["made_for"].update(machine="riscv64"),
        lambda m: m["versions"].update(tvm_forest="0.0.1"),
    ],
    ids=["instructions", "machine", "version"],
)
def test_code_that_cannot_run_here_is_compiled_anew(change: Callable[[Any], Any]) -> None:
    loaded = saving.from_bytes(changed(saved(), change))
    assert is_compiled_anew(loaded)
    assert not is_compiled_anew(saving.from_bytes(saved()))
    assert results(loaded, ROWS) == results(predictor(), ROWS)
    assert loaded.signature == NAMED.signature


def test_code_that_the_system_refuses_is_compiled_anew() -> None:
    whole = archive.unpack(saved(), "test")
    whole.parts["code.so"] = b"\x7fELF"
    loaded = saving.from_bytes(archive.pack(whole))
    assert is_compiled_anew(loaded)
    assert results(loaded, ROWS) == results(predictor(), ROWS)


def test_why_code_is_compiled_anew_is_told(caplog: pytest.LogCaptureFixture) -> None:
    reasons = {
        "this CPU lacks avx9000": lambda m: m["code"]["made_for"]["instructions"].append("avx9000"),
        "it is for machine 'riscv64', and here is": lambda m: m["code"]["made_for"].update(
            machine="riscv64"
        ),
        "it is for tvm_forest '0.0.1', and here is": lambda m: m["versions"].update(
            tvm_forest="0.0.1"
        ),
    }
    for reason, change in reasons.items():
        saving.from_bytes(changed(saved(), change))
        (record,) = [x for x in caplog.records if x.name == saving.__name__]
        assert reason in record.message
        caplog.clear()
    saving.from_bytes(saved(), recompile=True)
    assert "it is not trusted" in caplog.text


@pytest.mark.skipif(not ON_X86, reason="names instructions of x86")
def test_code_asks_only_for_instructions_that_it_may_use() -> None:
    needed = set(archive.unpack(saved(), "test").manifest["code"]["made_for"]["instructions"])
    assert "sse2" in needed
    assert not needed & {"pku", "rdseed", "rdrnd", "sha", "aes", "xsave", "clflushopt", "fsgsbase"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an ELF library tells on itself")
def test_stored_code_does_not_run_where_it_is_not_trusted(tmp_path: Path) -> None:
    """A library is planted that leaves a file behind as soon as it is loaded."""
    command = shutil.which("cc")
    if command is None:
        pytest.skip("no C compiler is installed, which the planted library needs")
    left, source, planted = tmp_path / "left", tmp_path / "planted.c", tmp_path / "planted.so"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) "
        f'{{ fclose(fopen("{left}", "w")); }}\n'
    )
    subprocess.run([command, "-shared", "-fPIC", "-o", planted, source], check=True)
    whole = archive.unpack(saved(), "test")
    whole.parts["code.so"] = planted.read_bytes()
    data = archive.pack(whole)
    loaded = tvm_forest.load_predictor(data, recompile=True)
    assert not left.exists()
    assert results(loaded, ROWS) == results(predictor(), ROWS)
    with contextlib.suppress(Exception):  # it has none of the functions
        tvm_forest.load_predictor(data)
    assert left.exists()


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, io.BytesIO])
def test_a_predictor_is_read_from_bytes_and_streams(form: Callable[[bytes], Any]) -> None:
    assert results(tvm_forest.load_predictor(form(saved())), ROWS) == results(predictor(), ROWS)


def test_a_predictor_is_written_to_a_stream() -> None:
    stream = io.BytesIO()
    predictor().save(stream)
    assert stream.getvalue() == saving.to_bytes(predictor())


@pytest.mark.skipif(not ON_X86, reason="names CPUs of x86")
def test_a_cpu_asked_for_by_name_that_is_not_here_is_refused() -> None:
    data = changed(saved(), lambda m: m["code"]["made_for"]["instructions"].append("avx9000"))
    cpu = "graniterapids" if IS_AMD else "znver5"
    data = changed(data, lambda m: m["target"].update(mcpu=cpu))
    with pytest.raises(BuildError, match=f"lacks .*which '{cpu}' has"):
        saving.from_bytes(data)


# -- refusals -------------------------------------------------------------------------------------


def test_a_file_with_missing_end_is_refused() -> None:
    lengths = np.linspace(0, len(saved()) - 1, 200).astype(int)
    for length in {*lengths.tolist(), *range(100), *range(len(saved()) - 100, len(saved()))}:
        with pytest.raises(ModelFormatError):
            saving.from_bytes(saved()[:length])


@pytest.mark.parametrize("seed", range(200))
def test_a_file_with_turned_bits_is_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = np.frombuffer(saved(), np.uint8).copy()
    for place in rng.integers(0, len(data), rng.integers(1, 4)):
        data[place] ^= 1 << rng.integers(8)
    if data.tobytes() != saved():  # a bit may be turned twice
        with pytest.raises(ModelFormatError, match=r"is damaged|no saved predictor"):
            saving.from_bytes(data.tobytes())


@pytest.mark.parametrize("more", [b"\0", saved])
def test_a_file_with_more_behind_it_is_refused(more: Any) -> None:
    with pytest.raises(ModelFormatError, match="is damaged"):
        saving.from_bytes(saved() + (more if isinstance(more, bytes) else more()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=1), "field 'format': expected 3, got 1.*read it with the"),
        (lambda m: m.update(kind="profile"), "field 'kind': expected 'predictor', got 'profile'"),
        (lambda m: m.pop("n_jobs"), "not as expected .KeyError: 'n_jobs'"),
        (lambda m: m.update(n_jobs=0), "argument 'n_jobs'"),
        (lambda m: m.update(functions=[]), "not as expected"),
        (lambda m: m["functions"].update(predict=["arrays/99.npy"]), "KeyError: 'arrays/99.npy'"),
        (lambda m: m["functions"].update(other=[]), "not as expected"),
        (lambda m: m["forest"].update(shade=1), "field 'shade' is unknown"),
        (lambda m: m["forest"].update(n_features=1), "tests feature"),
        (lambda m: m.update(schedules={"1": "{}"}), "no schedule"),
        (lambda m: m.update(schedules={"2": START.to_json()}), "no schedule for batches of 1 row"),
        (lambda m: m.update(schedules={"1": START.to_json(), "few": "{}"}), "not as expected"),
    ],
)
def test_an_intact_file_that_says_something_else_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ForestError, match=message):
        saving.from_bytes(changed(saved(), change))


def test_a_file_without_one_of_its_parts_is_refused() -> None:
    whole = archive.unpack(saved(), "test")
    for name in set(whole.parts) - {"forest/labels.npy"}:  # some models have no labels
        others = {key: part for key, part in whole.parts.items() if key != name}
        with pytest.raises(ForestError, match="not as expected"):
            saving.from_bytes(archive.pack(archive.Archive(whole.manifest, others)))


def foreign_zip() -> bytes:
    data = io.BytesIO()
    np.savez(data, a=np.arange(3))
    return data.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\x80\x04N.", foreign_zip()], ids=["empty", "model", "pickle", "npz"]
)
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(data)
    with pytest.raises(ModelFormatError, match=r"other.*no saved predictor.*tvm_forest\.build"):
        tvm_forest.load_predictor(tmp_path / "other")


def test_a_file_of_another_model_is_stale(file: Path) -> None:
    other = drawn_forest(12, 4, base=(0.1, 0.2), seed=4)
    with pytest.raises(ModelFormatError, match="field 'signature'.*build and save it again"):
        tvm_forest.load_predictor(file, other)
    assert tvm_forest.load_predictor(file, NAMED).signature == NAMED.signature


def test_load_says_what_reads_a_saved_predictor(file: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"read it with tvm_forest\.load_predictor"):
        tvm_forest.load(file)


@pytest.mark.parametrize("name", ["none", ".", "no\0name"])
def test_a_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="cannot be read"):
        tvm_forest.load_predictor(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["none/model", ".", "no\0name", "n" * 300])
def test_a_file_that_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="save: argument 'file': cannot write .*name a file in"):
        predictor().save(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_before_anything_else(file: Path) -> None:
    os.mkfifo(file.with_name("fifo"))
    odd = copy.copy(predictor())
    odd.forest = replace(odd.forest, labels=np.array([{1}, "yes"], object))
    for name in ("none/model", "model.tvmf/below", ".", "fifo"):
        with pytest.raises(InputError, match="save: argument 'file': cannot write"):
            odd.save(file.parent / name)
    assert file.with_name("fifo").is_fifo()
    assert {path.name for path in file.parent.iterdir()} == {"fifo", "model.tvmf"}


def test_what_is_no_file_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="'file': a list is no path; give a str") as refused:
        tvm_forest.load_predictor([saved()])  # type: ignore[arg-type]
    assert len(str(refused.value)) < 200
    with pytest.raises(InputError, match="'file': a bytes is no path; give a str"):
        predictor().save(b"model")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'file': it is open for text; open it with mode 'rb'"):
        tvm_forest.load_predictor(io.StringIO("model"))  # type: ignore[arg-type]


def test_a_long_name_is_shown_in_part() -> None:
    name = "n" * 100_000
    for call in (tvm_forest.load_predictor, predictor().save):
        with pytest.raises(ForestError, match=r"'nnnn.*\.\.\..*nnnn'") as refused:
            call(name)
        assert len(str(refused.value)) < 500
    for field in ("kind", "versions"):
        data = changed(saved(), lambda m, field=field: m.update({field: name, "format": 9}))
        with pytest.raises(ModelFormatError, match=r"nnnn'.*expected|expected.*'nnnn") as refused:
            saving.from_bytes(data)
        assert len(str(refused.value)) < 500


def test_paths_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="a float is no path"):
        predictor().save(1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a float is no path"):
        tvm_forest.load_predictor(1.5)  # type: ignore[arg-type]


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_savers_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    others = [replace(NAMED, source=f"number {i}") for i in range(2)]
    both = [tvm_forest.build(forest, schedule=START) for forest in others]

    def save_and_load(number: int) -> str:
        both[number % 2].save(path)
        return tvm_forest.load_predictor(path).forest.source

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(save_and_load, range(40))) <= {"number 0", "number 1"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_leaves_the_old_file(file: Path) -> None:
    odd = copy.copy(predictor())
    odd.forest = replace(odd.forest, labels=np.array([{1}, "yes"], object))
    with pytest.raises(UnsupportedModel):
        odd.save(file)
    assert file.read_bytes() == saved()
    assert list(file.parent.iterdir()) == [file]


def test_a_file_is_a_zip_archive_that_numpy_can_look_into(file: Path) -> None:
    with zipfile.ZipFile(file) as members:
        assert members.testzip() is None
        assert members.namelist()[0] == "tvm_forest.json"
    thresholds = np.load(file)["forest/threshold"]
    assert np.array_equal(thresholds, predictor().forest.threshold)


def test_a_forest_has_no_field_that_a_file_would_lose() -> None:
    values, arrays = to_fields(FOREST)
    known = {*values, *arrays}
    left_out = {"with_all_rounds"}  # a loaded model refuses the rounds behind its best one
    assert known == set(Forest.__dataclass_fields__) - left_out
