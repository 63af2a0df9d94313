"""Files that are written over keep those who may use them, and links lead on to them."""

import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest import viz
from tvm_forest.system import archive, code_cache

FOREST = drawn_forest(6, 3, seed=1)
ROWS = np.zeros((5, FOREST.n_features), np.float32)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")


@pytest.fixture(scope="module")
def predictor() -> Any:
    return tvm_forest.build(FOREST, schedule=tvm_forest.new_schedule(FOREST))


@pytest.fixture(autouse=True)
def umask() -> Any:
    """What most systems have: everybody may read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def predict(predictor: Any, file: Path) -> None:
    np.save(file.parent / "rows.npy", ROWS)
    tvm_forest.predict_file(predictor, file.parent / "rows.npy", file)


@functools.cache
def hits() -> tvm_forest.Profile:
    return tvm_forest.profile(FOREST, ROWS)


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "model.tvmf": lambda predictor, file: predictor.save(file),
    "model.so": lambda predictor, file: predictor.export_library(file),
    "model.zip": lambda predictor, file: predictor.export_library(file),
    "scores.csv": predict,
    "scores.parquet": predict,
    "profile.json": lambda _, file: hits().save(file),
    "forest.txt": lambda _, file: viz.tree(FOREST).save(file),
}


def mode_of(place: Path) -> int:
    return stat.S_IMODE(place.stat().st_mode)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "mode", [0o640, *(pytest.param(x, marks=pytest.mark.long) for x in (0o600, 0o664))]
)
def test_a_file_that_is_written_over_keeps_its_mode(
    name: str, mode: int, predictor: Any, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.touch()
    file.chmod(mode)
    WRITERS[name](predictor, file)
    assert file.stat().st_size > 0 and mode_of(file) == mode


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("target", ["old", "none yet"])
def test_a_link_leads_to_what_is_written(
    name: str, target: str, predictor: Any, tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "files").mkdir()
    file, link = tmp_path / "files" / name, tmp_path / "links" / name
    if target == "old":
        file.touch(mode=0o600)
    link.symlink_to(Path("..") / "files" / name)
    WRITERS[name](predictor, link)
    assert link.is_symlink() and not file.is_symlink()
    assert file.stat().st_size > 0 and mode_of(file) == (0o600 if target == "old" else 0o644)
    assert not [found for found in tmp_path.rglob("*.draft")]


@pytest.mark.parametrize("name", WRITERS)
def test_a_new_file_is_as_the_umask_says(name: str, predictor: Any, tmp_path: Path) -> None:
    os.umask(0o027)
    WRITERS[name](predictor, tmp_path / name)
    assert mode_of(tmp_path / name) == 0o640


@pytest.mark.parametrize("mode", [0o700, 0o750])
def test_an_empty_folder_and_a_link_to_it_stay_as_they_are(
    mode: int, predictor: Any, tmp_path: Path
) -> None:
    for name in ("rows", "scores"):
        (tmp_path / name).mkdir(mode)
    np.save(tmp_path / "rows" / "a.npy", ROWS)
    (tmp_path / "link").symlink_to("scores")
    tvm_forest.predict_file(predictor, tmp_path / "rows", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and mode_of(tmp_path / "scores") == mode
    assert [file.name for file in (tmp_path / "scores").iterdir()] == ["a.npy"]


def test_nobody_else_can_read_a_private_file_while_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.touch(mode=0o600)
    with archive.open_replacement(file) as draft:
        assert mode_of(Path(draft.name)) == 0o600


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user")
def test_a_file_of_another_user_stays_theirs(predictor: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.tvmf"
    file.touch(mode=0o640)
    os.chown(file, 12345, 23456)
    predictor.save(file)
    about = file.stat()
    assert (about.st_uid, about.st_gid, mode_of(file)) == (12345, 23456, 0o640)


def test_a_group_that_cannot_be_kept_gives_nothing_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    file = tmp_path / "scores.csv"
    file.touch()
    file.chmod(0o664)
    archive.replace_file(file, b"1\n")
    assert mode_of(file) == 0o604 and file.read_bytes() == b"1\n"


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_the_cache_is_the_users_own_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    os.umask(umask)
    cache = code_cache.CodeCache(tmp_path / "cache")
    cache.write("a", archive.Archive({}, {"code": b"1"}))
    found = cache.read("a")
    assert found is not None and found.parts == {"code": b"1"}
