"""Processes that find their code in a file or in the cache start without the compiler."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shapley
import tvm_forest
from forests import drawn_forest
from schedules import in_blocks
from tvm_forest import compiler
from tvm_forest.forest.fields import to_fields
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor import compiling, saving
from tvm_forest.runtime import linked, loading
from tvm_forest.search import machines
from tvm_forest.system import archive, code_cache
from tvm_forest.system.late import import_late
from tvm_forest.target import cpu_name
from tvm_forest.targets import cpu, stored_code

SLOW = ("scipy", "sklearn", "pandas", "pyarrow", "xgboost", "lightgbm", "treelite", "torch")
ALONE = f"""
import sys
sys.modules.update(dict.fromkeys({SLOW}))  # their import fails from now on
import pickle
from pathlib import Path
import numpy as np
import tvm_forest

def check(found, name, way):
    expected = np.load(folder / f"{{name}}.{{way}}.npy")
    assert found.dtype == expected.dtype and np.array_equal(found, expected), (name, way)
"""
LOADED = (
    ALONE
    + """
sys.modules["tvm"] = sys.modules["rich"] = None  # as where they are not installed
WAYS = ("predict_contributions", "predict_interactions")
from tvm_forest import cli
folder = Path(sys.argv[1])
for file in sorted(folder.glob("*.tvmf")):
    rows = np.load(file.with_suffix(".npy"))
    predictor = tvm_forest.load_predictor(file)
    for made in (predictor, pickle.loads(pickle.dumps(predictor))):
        for n_jobs in (None, 1, 2):
            check(made.predict(rows, n_jobs=n_jobs), file.stem, "predict")
            check(made.predict_margin(rows, n_jobs=n_jobs), file.stem, "predict_margin")
        check(made.predict(rows[:1]), file.stem, "first")
        for way in WAYS if "cover" in file.stem else ():
            check(getattr(made, way)(rows), file.stem, way)
            assert np.array_equal(getattr(made, way)(rows[:1]), getattr(made, way)(rows)[:1])
    made.save(file.with_suffix(".again"))
    assert file.with_suffix(".again").read_bytes() == file.read_bytes()
    try:
        tvm_forest.load_predictor(file, recompile=True)
    except tvm_forest.BuildError as error:
        assert "install apache-tvm" in str(error), error
    else:
        raise AssertionError("it was compiled without a compiler")
    found = file.with_suffix(".found.npy")
    assert cli.main(["predict", str(file), str(file.with_suffix(".npy")), "-o", str(found)]) == 0
    check(np.load(found), file.stem, "predict")
    np.savetxt(file.with_suffix(".csv"), rows, delimiter=",", fmt="%.17g")
    for progress in (False, None):
        tvm_forest.predict_file(predictor, file.with_suffix(".csv"), found, progress=progress)
        check(np.load(found), file.stem, "predict")
    for command in ("export", "info"):
        words = [str(file), str(found.with_suffix(".so"))][: 1 + (command == "export")]
        assert cli.main([command, *words]) == 2
"""
)
KERNELS = (
    ALONE
    + """
sys.modules["tvm"] = None
folder = Path(sys.argv[1])
predictor = tvm_forest.load_predictor(folder / "gpu.tvmf")
assert "__global__" in predictor.source("cuda")
try:
    check(predictor.predict_margin(np.load(folder / "rows.npy")), "gpu", "predict_margin")
except tvm_forest.DeviceError as error:
    assert "found" in str(error), error  # neither driver nor compiler
"""
)
BUILT = (
    ALONE
    + """
from tvm_forest.forest.fields import from_fields
from tvm_forest.system import archive
folder = Path(sys.argv[1])
saved = archive.unpack((folder / "forest").read_bytes(), "forest")
forest = from_fields(saved.manifest, {name[:-4]: array for name, array in saved.parts.items()})
rows = np.load(folder / "rows.npy")
for name, model in (("file", folder / "model.json"), ("forest", forest)):
    predictor = tvm_forest.build(model)
    for way in ("predict", "apply", "predict_contributions"):
        check(getattr(predictor, way)(rows), name, way)
part = predictor.rounds(2, 5).predict_margin(rows)
assert np.array_equal(part, np.load(folder / "part.npy"))
few = rows[:3].astype(np.float32)
assert np.array_equal(predictor.predict_margin(few), predictor._small_batches.few.margins(few))
assert "tvm" not in sys.modules
"""
)
UNWANTED = (
    *("tvm", "tvm_ffi", "numpy.ma", "orjson", "importlib.metadata", "statistics"),
    *(f"tvm_forest.{x}" for x in ("compiler", "search.heuristic", "search.cost")),
    *("tvm_forest.runtime.gpu.library", "tvm_forest.runtime.gpu.driver"),
)
"""Modules that a process does without which finds the code of its model in the cache."""

MOST_MODULES = 130
"""Modules of this package that such a process imports, without layouts: each CPU has its own."""

RETRAINED = (
    ALONE
    + f"""
folder = Path(sys.argv[1])
predictor = tvm_forest.build(folder / "newer.ubj")
check(predictor.predict_margin(np.load(folder / "rows.npy")), "newer", "predict_margin")
assert not set({UNWANTED}) & set(sys.modules), set({UNWANTED}) & set(sys.modules)
ours = [name for name in sys.modules if name.startswith("tvm_forest")]
ours = [name for name in ours if not name.startswith("tvm_forest.layouts")]
assert len(ours) <= {MOST_MODULES}, len(ours)
"""
)

FORESTS = {
    "numerical": drawn_forest(12, 4, base=(0.1,), seed=1),
    "classes": drawn_forest(6, 3, base=(0.1, 0.2, 0.3), link="softmax", seed=2),
}


def run(source: str, *arguments: Any) -> None:
    """Run a program in a new interpreter."""
    command = [sys.executable, "-c", source, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def with_categories(folder: Path) -> Path:
    """The file of a model that looks categories up."""
    import lightgbm

    rng = np.random.default_rng(3)
    rows = np.column_stack([rng.integers(0, 9, 300), rng.normal(size=(300, 2))])
    data = lightgbm.Dataset(rows, rows[:, 0] % 3 + rows[:, 1], categorical_feature=[0])
    params = {"verbose": -1, "num_leaves": 7, "min_data_in_leaf": 5, "num_threads": 1}
    model = lightgbm.train(params, data, 8)
    model.save_model(folder / "model.txt")
    return folder / "model.txt"


@pytest.mark.slow
def test_saved_predictors_predict_without_the_compiler(tmp_path: Path) -> None:
    models: dict[str, Any] = {**FORESTS, "categorical": with_categories(tmp_path)}
    models["cover"] = shapley.with_cover(FORESTS["classes"])
    for name, model in models.items():
        schedule: Any = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 16).parallel("b0")
        if name == "numerical":  # by bit planes too, which ask for memory
            schedule = {1: schedule, 64: in_blocks(model, "bitsliced", 64).parallel("b0")}
        predictor = tvm_forest.build(model, schedule=schedule)
        rows = hard_rows(predictor.forest, 700, seed=4)
        for way in ("predict_contributions", "predict_interactions") if name == "cover" else ():
            np.save(tmp_path / f"{name}.{way}.npy", getattr(predictor, way)(rows))
        predictor.save(tmp_path / f"{name}.tvmf")
        np.save(tmp_path / f"{name}.npy", rows)
        np.save(tmp_path / f"{name}.first.npy", predictor.predict(rows[:1]))
        for way in ("predict", "predict_margin"):
            np.save(tmp_path / f"{name}.{way}.npy", getattr(predictor, way)(rows))
        expected = predictor.forest.predict_reference(rows)
        assert np.array_equal(predictor.predict_margin(rows), np.squeeze(expected))
    run(LOADED, tmp_path)


def test_a_saved_predictor_for_a_gpu_needs_no_tvm(tmp_path: Path) -> None:
    rows = hard_rows(FORESTS["numerical"], 50)
    np.save(tmp_path / "rows.npy", rows)
    expected = FORESTS["numerical"].predict_reference(rows)
    np.save(tmp_path / "gpu.predict_margin.npy", np.squeeze(expected))
    tvm_forest.build(FORESTS["numerical"], "cuda").save(tmp_path / "gpu.tvmf")
    run(KERNELS, tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of an empty cache, which is on."""
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    return str(tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [code_cache.MAX_ENTRY_BYTES, 1000], ids=["kept", "laid out"])
@pytest.mark.cases(1)
def test_a_second_process_builds_without_the_compiler(
    limit: int, tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "MAX_ENTRY_BYTES", limit)
    import xgboost

    data = np.random.default_rng(0).normal(size=(99, 4)).astype(np.float32)
    model = xgboost.train({"max_depth": 2}, xgboost.DMatrix(data, data[:, 0] > 0), 6)
    model.save_model(tmp_path / "model.json")
    forest = tvm_forest.load(replace(tvm_forest.load(model), base_score=np.array([0.25])))
    values, arrays = to_fields(forest)
    parts = {f"{name}.npy": array for name, array in arrays.items()}
    (tmp_path / "forest").write_bytes(archive.pack(archive.Archive(values, parts)))
    rows = hard_rows(forest, 65, seed=1)
    np.save(tmp_path / "rows.npy", rows)
    for name, each in (("file", tmp_path / "model.json"), ("forest", forest)):
        predictor = tvm_forest.build(each)
        for way in ("predict", "apply", "predict_contributions"):
            np.save(tmp_path / f"{name}.{way}.npy", getattr(predictor, way)(rows))
    np.save(tmp_path / "part.npy", predictor.rounds(2, 5).predict_margin(rows))
    run(BUILT, tmp_path)


@pytest.mark.slow
def test_a_new_process_imports_little_for_a_model_of_a_known_kind(
    tmp_path: Path, cache: str
) -> None:
    import xgboost

    data = np.random.default_rng(0).normal(size=(99, 4)).astype(np.float32)
    for name, scale in (("first", 1), ("newer", 2)):
        trained = xgboost.train({"max_depth": 1}, xgboost.DMatrix(data, scale * data[:, 0]), 2)
        trained.save_model(tmp_path / f"{name}.ubj")
    tvm_forest.build(tmp_path / "first.ubj")
    np.save(tmp_path / "rows.npy", data)
    expected = tvm_forest.load(tmp_path / "newer.ubj").predict_reference(data)
    np.save(tmp_path / "newer.predict_margin.npy", np.squeeze(expected))
    run(RETRAINED, tmp_path)


def test_a_predictor_of_the_cache_is_like_one_that_was_compiled(cache: str) -> None:
    first, again = (tvm_forest.build(FORESTS["classes"], schedule=lambda sch: sch) for _ in "12")
    assert type(again.library) is linked.LinkedLibrary
    assert again.schedules == first.schedules and again.schedule == first.schedule
    assert again.signature == first.signature and repr(again) == repr(first)
    assert again.target == first.target and again.n_jobs == first.n_jobs
    assert saving.to_bytes(again) == saving.to_bytes(first)
    assert again.source() == first.source()


def test_default_schedules_of_another_machine_are_chosen_anew(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(machines.VARIABLE, str(tmp_path / "machine.json"))
    forest = drawn_forest(6, 3, base=(0.1, 0.2, 0.3), dtype="float64")  # compiles fast
    tvm_forest.build(forest)
    chosen = list[Any]()
    choose = compiling.kept_choices.keep_or_choose

    def listen(*model: Any) -> Any:
        chosen.append(choose(*model))
        return chosen[-1]

    monkeypatch.setattr(compiling.kept_choices, "keep_or_choose", listen, raising=False)
    tvm_forest.build(forest)
    assert not chosen
    own = replace(machines.shipped_machines()[0], name=cpu_name())
    (tmp_path / "machine.json").write_text(own.to_json(), encoding="utf-8")
    assert tvm_forest.build(forest).schedules == chosen[0]


def test_instructions_that_linux_tells_are_those_that_llvm_knows() -> None:
    import tvm

    # Not those of the CPU's name: a virtual machine may have a model's number, and other features.
    told = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    has = {str(name) for name, is_there in told.items() if is_there}
    known = loading.known_instructions()
    assert {"avx2", "avx512f", "lzcnt", "sse4.1", "sse3"} & has <= known
    assert known & {str(name) for name in told} <= has
    assert stored_code.find_missing(cpu.instructions_here() | {"avx9000"}) == {"avx9000"}
    assert stored_code.find_missing(()) == set()


def test_what_stands_for_a_module_is_pickled_by_its_name() -> None:
    stand_in = import_late("tvm_forest.compiler")
    again = pickle.loads(pickle.dumps(stand_in))
    assert type(again) is type(stand_in)
    assert again.compile_forest is compiler.compile_forest


def test_only_a_missing_compiler_is_told_by_an_error_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_room"):
        _ = import_late("tvm_forest.no_such_room").anything


def test_code_without_a_name_may_be_the_first_to_use_the_package() -> None:
    run("exec('import tvm_forest; tvm_forest.load', {})")
