"""Compiled code that processes share: what is an entry, and what is as good as none."""

import errno
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest, full_forest
from tvm_forest import cli, frontends
from tvm_forest.forest.model import ROLES
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import kept_forests
from tvm_forest.layouts import ANY_FOREST
from tvm_forest.layouts.protocol import LAYOUTS, find, register
from tvm_forest.predictor import compiling
from tvm_forest.runtime.linked import LinkedLibrary
from tvm_forest.system import archive, code_cache
from tvm_forest.system.archive import Archive
from tvm_forest.system.code_cache import CodeCache
from tvm_forest.targets import stored_code

FOREST = drawn_forest(12, 4, base=(0.1,), seed=1)
ROWS = hard_rows(FOREST, 33, seed=1)
EXPECTED = FOREST.predict_reference(ROWS)[:, 0]
START = tvm_forest.new_schedule(FOREST)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty cache, which is on."""
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    code_cache._warn_once.cache_clear()
    return tmp_path / "cache"


def margins(forest: Any = FOREST, schedule: Any = START) -> Any:
    return tvm_forest.build(forest, schedule=schedule).predict_margin(ROWS)


def entries(folder: Path) -> dict[str, archive.Archive]:
    """What is in a cache, by file; a damaged file is an error."""
    found = sorted(folder.glob(f"*{code_cache.SUFFIX}"))
    return {file.name: archive.unpack(file.read_bytes(), "test") for file in found}


def codes(folder: Path) -> list[Path]:
    """The files with machine code; the others hold arrays of a model, and name its code."""
    return [folder / name for name, entry in entries(folder).items() if "form" in entry.manifest]


def model_file(folder: Path) -> Path:
    """The file of the only model."""
    (found,) = (name for name, entry in entries(folder).items() if "schedules" in entry.manifest)
    return folder / found


def numbers_of_files(folder: Path) -> dict[str, int]:
    """A file that is written anew gets another number."""
    return {file.name: file.stat().st_ino for file in folder.glob("*.code")}


def test_a_model_that_is_built_again_is_not_compiled_again(folder: Path) -> None:
    first = margins()
    written = numbers_of_files(folder)
    assert len(written) == 3 and len(codes(folder)) == 1
    assert np.array_equal(margins(), first)
    assert numbers_of_files(folder) == written
    assert np.array_equal(first, EXPECTED)


def test_code_that_is_in_the_cache_is_what_runs(folder: Path) -> None:
    other = replace(FOREST, comparison="<=")
    margins()
    (code,) = codes(folder)
    assert not np.array_equal(margins(other), EXPECTED)  # rows lie on thresholds
    (code_of_other,) = {*codes(folder)} - {code}
    parts = archive.unpack(code.read_bytes(), "test").parts
    kept = archive.unpack(code_of_other.read_bytes(), "test")
    code_of_other.write_bytes(archive.pack(kept._replace(parts=parts)))
    assert np.array_equal(margins(other), EXPECTED)


def test_models_of_one_shape_share_code(folder: Path) -> None:
    rows = ROWS[:, :3]
    for seed in (5, 6):
        forest = full_forest(4, 3, seed=seed)
        predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
        assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])
    assert len(entries(folder)) == 3 and len(codes(folder)) == 1


def test_another_schedule_target_or_output_is_another_entry(folder: Path) -> None:
    predictor = tvm_forest.build(FOREST, schedule=START)
    tvm_forest.build(FOREST, schedule=START.represent_as("packed"))
    tvm_forest.build(FOREST, {"kind": "llvm", "opt-level": 1}, START)
    assert np.array_equal(predictor.apply(ROWS), FOREST.predict_reference(ROWS, "apply"))
    assert len(codes(folder)) == 4


def cut(data: bytes) -> bytes:
    return data[:-100]


def with_another_byte(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def of_another_key(data: bytes) -> bytes:
    whole = archive.unpack(data, "test")
    return archive.pack(whole._replace(manifest={**whole.manifest, "key": "0" * 64}))


def empty(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("change", [cut, with_another_byte, of_another_key, empty])
def test_an_entry_that_was_changed_is_made_anew(change: Any, folder: Path) -> None:
    expected = margins()
    (code,) = codes(folder)
    whole, number = code.read_bytes(), code.stat().st_ino
    code.write_bytes(change(whole))
    assert np.array_equal(margins(), expected)
    assert archive.unpack(code.read_bytes(), "test").manifest["key"] == code.stem
    assert code.stat().st_ino != number


@pytest.mark.parametrize("change", [cut, with_another_byte, of_another_key, empty])
def test_arrays_that_were_changed_are_made_anew(change: Any, folder: Path) -> None:
    margins()
    file = model_file(folder)
    file.write_bytes(change(file.read_bytes()))
    assert np.array_equal(margins(), EXPECTED)


def test_a_model_that_is_built_again_is_not_laid_out_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = drawn_forest(12, 4, base=(0.1,), dtype="float64")  # compiles fast by default too
    rows = hard_rows(forest, 33, seed=1)
    first = tvm_forest.build(forest)
    for name in ("lay_out", "compiler", "heuristic"):
        monkeypatch.setattr(compiling, name, None)
    again = tvm_forest.build(forest)
    assert np.array_equal(again.columns, first.columns)
    assert np.array_equal(again.predict_margin(rows), forest.predict_reference(rows)[:, 0])
    for name, arrays in first.arguments.items():
        for old, new in zip(arrays, again.arguments[name], strict=True):
            assert (
                old.numpy().dtype == new.numpy().dtype
                and old.numpy().tobytes() == new.numpy().tobytes()
            )


def test_large_models_are_laid_out_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MAX_ENTRY_BYTES", 1000)
    for _ in range(2):
        assert np.array_equal(margins(), EXPECTED)
        assert not archive.unpack(model_file(folder).read_bytes(), "test").parts


def test_what_was_built_inexactly_is_refused_all_the_same(folder: Path) -> None:
    other_order = START.sort_trees("depth")
    tvm_forest.build(FOREST, schedule=other_order, exact=False)
    with pytest.raises(tvm_forest.ScheduleError, match="exact=False"):
        tvm_forest.build(FOREST, schedule=other_order)


@pytest.fixture
def model() -> bytes:
    """The content of a file that counts as large."""
    import xgboost

    rows = np.random.default_rng(0).normal(size=(33, 4)).astype(np.float32)
    trained = xgboost.train({"max_depth": 3}, xgboost.DMatrix(rows, np.arange(33.0)), 5)
    return bytes(trained.save_raw("json"))


def test_a_large_file_that_is_loaded_again_is_not_read_again(
    folder: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tvm_forest.load(model) and not folder.exists()
    monkeypatch.setattr(kept_forests, "LARGE", 1000)
    first = tvm_forest.load(model)
    assert len(entries(folder)) == 1
    with monkeypatch.context() as patched:
        patched.setattr(frontends, "_OF_FILES", ())
        again = tvm_forest.load(model)
        with pytest.raises(tvm_forest.ModelFormatError):
            tvm_forest.load(model.replace(b"33", b"32"))
    for name in ROLES:
        old, new = getattr(first, name), getattr(again, name)
        assert type(old) is type(new) and repr(old) == repr(new)
        assert not isinstance(old, np.ndarray) or (old.dtype, old.tobytes()) == (
            new.dtype,
            new.tobytes(),
        )


@pytest.mark.parametrize("change", [cut, with_another_byte, of_another_key, empty])
def test_a_forest_that_was_changed_is_read_anew(
    change: Any, folder: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_forests, "LARGE", 1000)
    signature = tvm_forest.load(model).signature
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(change(whole))
    assert tvm_forest.load(model).signature == signature
    assert file.read_bytes() == whole


def test_an_entry_that_others_may_write_is_made_anew(folder: Path) -> None:
    margins()
    (code,) = codes(folder)
    number = code.stat().st_ino
    code.chmod(0o666)
    margins()
    assert code.stat().st_ino != number and not code.stat().st_mode & 0o022


def with_mode(mode: int) -> Any:
    def make(folder: Path) -> None:
        folder.mkdir()
        folder.chmod(mode)

    return make


def of_another_user(folder: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("needs another user")
    folder.mkdir()
    os.chown(folder, 12345, -1)


def in_a_file(folder: Path) -> None:
    folder.parent.write_text("")


def test_what_the_first_folder_lacks_is_read_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, own = tmp_path / "image", tmp_path / "own"
    code_cache.CodeCache(image).write("of the image", Archive({"from": "image"}, {}))
    before = sorted(image.iterdir())
    monkeypatch.setenv(code_cache.VARIABLE, os.pathsep.join([str(own), str(image)]))
    cache = code_cache.find_cache()
    assert cache is not None
    cache.write("of its own", Archive({"from": "own"}, {}))
    found = [cache.read(key) for key in ("of the image", "of its own", "of nobody")]
    assert [x and x.manifest["from"] for x in found] == ["image", "own", None]
    assert sorted(image.iterdir()) == before


REFUSED: dict[str, tuple[Any, str]] = {
    "all may write": (with_mode(0o777), r"others \(mode 0777\); .*chmod go-w"),
    "a group may write": (with_mode(0o770), r"others \(mode 0770\); .*chmod go-w"),
    "another user's": (of_another_user, r"belongs to another user \(12345\); .*chown"),
    "a file": (Path.touch, r"is no folder; .*remove it"),
    "in a file": (in_a_file, r"cannot be looked into \(Not a directory\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_is_not_used_is_told_once_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, message = REFUSED[name]
    folder = tmp_path / "home" / "cache"
    monkeypatch.setenv(code_cache.VARIABLE, str(folder))
    if name != "in a file":
        folder.parent.mkdir()
    make(folder)
    with pytest.warns(RuntimeWarning, match=f"cache: {folder} .*{message}.*=off") as told:
        for _ in range(2):
            assert np.array_equal(margins(), EXPECTED)
    assert len(told) == 1
    assert CodeCache(folder).find_fault() and CodeCache(folder).read("key") is None
    assert not folder.is_dir() or not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_to_is_told_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match="keeps nothing .Read-only.*make room") as told:
        assert np.array_equal(margins(), EXPECTED)
    assert len(told) == 1 and not list(folder.iterdir())


@pytest.mark.parametrize("place", ["/dev/null/cache", "off", ""])
@pytest.mark.filterwarnings("ignore:cache")
def test_without_a_folder_models_are_compiled(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, place)
    assert np.array_equal(margins(), EXPECTED)


def test_a_home_that_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(code_cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.warns(RuntimeWarning, match="'relative', which is not absolute; .*let the env"):
        assert code_cache.find_cache() is None


USED = """
import sys, warnings, pathlib, tvm_forest
if sys.argv[2:]:
    (pathlib.Path(tvm_forest.__file__).parent / sys.argv[2]).open("a").write("# another release")
from tvm_forest.system import archive, code_cache
cache = code_cache.CodeCache(pathlib.Path(sys.argv[1]))
key = code_cache.digest("code", code_cache.digest_sources())
known = cache.read(key) is not None
cache.write(key, archive.Archive({}, {}))
print(known, len(list(cache.folder.glob("*.code"))) if cache.folder.is_dir() else 0)
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with a copy of what the cache needs of the package."""
    package = tmp_path / "release" / "tvm_forest"
    names = ["__init__", "errors", "tir_gen/canonical"]
    names += [f"system/{x}" for x in ("__init__", "late", "archive", "code_cache")]
    names += [f"system/process/{x}" for x in ("__init__", "sources", "locks")]
    for name in names:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(code_cache.PACKAGE / f"{name}.py", package / f"{name}.py")
    return package.parent


def use(release: Path, *arguments: str) -> tuple[str, str]:
    """Use the cache in a process of a release: whether it had an entry, and how many there are."""
    command = [sys.executable, "-c", USED, str(release.parent / "cache"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(release), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=release.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("changed", ["tir_gen/canonical.py", "system/code_cache.py", "new.py"])
def test_a_process_that_began_before_an_upgrade_leaves_nothing(changed: str, release: Path) -> None:
    found, told = use(release, changed)
    assert found == "False 0" and "have changed since this process imported it" in told
    assert [use(release), use(release)] == [("False 1", ""), ("True 1", "")]


def test_releases_without_sources_have_keys_of_their_own(release: Path) -> None:
    for file in list(release.rglob("*.py")):
        py_compile.compile(str(file), str(file.with_suffix(".pyc")))
        if file.stem != "canonical":
            file.unlink()
    assert [use(release), use(release)] == [("False 1", ""), ("True 1", "")]
    canonical = release / "tvm_forest" / "tir_gen" / "canonical.py"
    canonical.write_text("ANOTHER = 1\n")
    py_compile.compile(str(canonical), str(canonical.with_suffix(".pyc")))
    canonical.unlink()
    assert [use(release), use(release)] == [("False 2", ""), ("True 2", "")]


def test_a_package_in_an_archive_has_no_cache(release: Path, tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", release)
    found, told = use(Path(packed))
    assert found == "False 0" and "no files of its own" in told and "Predictor.save" in told


def test_a_tvm_that_was_imported_before_an_upgrade_is_named_by_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored_code.describe_machine.cache_clear()
    before = stored_code.describe_machine()
    monkeypatch.setattr(stored_code.machine_code, "TVM_VERSION", "0.27.0.before", raising=False)
    stored_code.describe_machine.cache_clear()
    assert stored_code.describe_machine() != before
    stored_code.describe_machine.cache_clear()


def test_a_note_says_what_the_sources_are_as_long_as_they_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        code_cache.digest_sources.cache_clear()
        return code_cache.digest_sources()

    right = digest()
    folder.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(code_cache, "TICK_SECONDS", 1e12)  # as if they had just been written
        assert digest() == right and not list(folder.iterdir())
    assert digest() == right
    (note,) = folder.glob("*.sources")
    state, _, noted = note.read_text().partition(" ")
    assert noted == right
    note.write_text(f"{state} what it says")
    assert digest() == "what it says"
    for other in ("another state " + right, "", "\udcff"):
        note.write_text(other, errors="surrogateescape")
        assert digest() == right
    note.write_text(f"{state} wrong")
    note.chmod(0o666)
    assert digest() == right


def test_without_a_linker_bitcode_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    for _ in range(2):
        assert np.array_equal(margins(), EXPECTED)
        (code,) = codes(folder)
        assert "code.ll" in archive.unpack(code.read_bytes(), "test").parts


def test_the_environment_says_where_the_cache_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(code_cache.VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    places = [code_cache.find_cache()]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    places.append(code_cache.find_cache())
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "own"))
    places.append(code_cache.find_cache())
    expected = [tmp_path / ".cache" / "tvm_forest", tmp_path / "xdg" / "tvm_forest"]
    assert [cache and cache.folder for cache in places] == [*expected, tmp_path / "own"]
    for text in ("off", "OFF", ""):
        monkeypatch.setenv(code_cache.VARIABLE, text)
        assert code_cache.find_cache() is None


def test_what_was_used_least_recently_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, entry = CodeCache(tmp_path), archive.Archive({}, {"code": bytes(1000)})
    for time, key in enumerate("abc"):
        cache.write(key, entry)
        os.utime(tmp_path / f"{key}{code_cache.SUFFIX}", (time, time))
    (tmp_path / ".left.draft").write_bytes(b"")
    os.utime(tmp_path / ".left.draft", (0, 0))
    assert cache.read("a") is not None
    monkeypatch.setattr(code_cache, "MAX_BYTES", cache.contents().size)
    cache.write("d", entry)
    assert {file.stem for file in tmp_path.iterdir()} == {"a", "c", "d"}


def build_and_compare(barrier: Any, found: Any) -> None:
    barrier.wait()
    found.put(np.array_equal(margins(), EXPECTED))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the process has threads, of OpenBLAS
def test_four_processes_that_build_at_once_share_the_cache(folder: Path) -> None:
    tvm_forest.build(FOREST, schedule=START)  # what all of them import
    CodeCache(folder).clear()
    fork = get_context("fork")
    barrier, found = fork.Barrier(4), fork.Queue()
    children = [fork.Process(target=build_and_compare, args=(barrier, found)) for _ in range(4)]
    for child in children:
        child.start()
    assert [found.get(timeout=1200) for _ in children] == [True] * 4
    for child in children:
        child.join()
    assert len(entries(folder)) == 3 == len(list(folder.iterdir()))
    written = numbers_of_files(folder)
    margins()
    assert numbers_of_files(folder) == written


SECOND = """
import sys, numpy, tvm_forest
from tvm_forest.forest.fields import from_fields
predictor = tvm_forest.build(sys.argv[1], schedule=lambda start: start)
numpy.save(sys.argv[3], predictor.predict_margin(numpy.load(sys.argv[2])))
"""


@pytest.mark.slow
def test_another_process_finds_the_code(folder: Path, tmp_path: Path) -> None:
    import xgboost

    rows = np.random.default_rng(0).normal(size=(33, 4)).astype(np.float32)
    model = tmp_path / "model.json"
    xgboost.train({"max_depth": 3}, xgboost.DMatrix(rows, np.arange(33.0)), 5).save_model(model)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    written = numbers_of_files(folder)
    np.save(tmp_path / "rows.npy", rows)
    command = [sys.executable, "-c", SECOND, model, tmp_path / "rows.npy", tmp_path / "found.npy"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "found.npy"), predictor.predict_margin(rows))
    assert numbers_of_files(folder) == written


@pytest.fixture
def foreign_layout() -> Iterator[str]:
    """A layout whose code is not in the package."""
    register(type("Foreign", (find(ANY_FOREST),), {"name": "foreign", "__module__": "elsewhere"}))
    yield "foreign"
    del LAYOUTS["foreign"]


def test_models_in_layouts_of_others_are_known_by_their_code_alone(
    folder: Path, foreign_layout: str
) -> None:
    for _ in range(2):
        assert np.array_equal(margins(schedule=START.represent_as(foreign_layout)), EXPECTED)
        assert len(entries(folder)) == len(codes(folder)) == 1


def test_loaded_code_is_compiled_for_its_text(folder: Path) -> None:
    predictor = tvm_forest.build(FOREST, schedule=START)
    assert isinstance(predictor.library, LinkedLibrary)
    assert "__tvm_ffi_predict:" in predictor.source()
    assert "define" in predictor.source("ll")
    with pytest.raises(tvm_forest.BuildError, match="'hex' is not there"):
        predictor.source("hex")


def test_the_command_line_shows_and_clears_the_cache(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    margins()
    assert cli.main(["cache"]) == 0
    assert f"folder: {folder}\nentries: 3, 0." in capsys.readouterr().out
    assert cli.main(["cache", "--clear"]) == 0
    assert "removed: 3, 0." in capsys.readouterr().out and not list(folder.iterdir())
    folder.chmod(0o777)
    assert cli.main(["cache"]) == 0
    assert "not used: it may be written to by others" in capsys.readouterr().out
    monkeypatch.setenv(code_cache.VARIABLE, "off")
    assert cli.main(["cache"]) == 0
    assert "the cache is off" in capsys.readouterr().out
