"""What is released is whole: the wheel, the sdist, what an index shows, and the workflows."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

import tvm_forest
from code_size import PACKAGE, ROOT
from install_matrix import join_rows

LINK = re.compile(r"\]\(([^)\s]+)\)")
BUILD = """
import sys
from hatchling import build
build.build_wheel(sys.argv[1])
build.build_sdist(sys.argv[1])
"""
"""As an installer calls the build backend; neither step asks a network."""

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
EMULATED = ["test-aarch64", "test-windows"]

LLVM_TEXTS = [f"runtime/threads/{name}" for name in ("pool", "few_rows", "windows", "macos")]
LLVM_TEXTS += ["targets/powers", "targets/arithmetic"]
"""Files of the package that are no Python."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="builds wheels; part of the extra 'test'")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-c", BUILD, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> ZipFile:
    (path,) = built.glob("*.whl")
    return ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    (name,) = (x for x in wheel.namelist() if x.endswith(".dist-info/METADATA"))
    return HeaderParser().parsestr(wheel.read(name).decode())


def list_sources(folder: Path, below: Path) -> set[str]:
    """Return the files of a folder, but not what Python leaves there."""
    files = (x for x in folder.rglob("*") if x.is_file() and "__pycache__" not in x.parts)
    return {str(x.relative_to(below)) for x in files if x.suffix != ".so"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: ZipFile) -> None:
    names = {x for x in wheel.namelist() if ".dist-info/" not in x}
    bindings = {f"tvm_forest/{name}" for name in list_sources(ROOT / "bindings", ROOT)}
    assert names == list_sources(PACKAGE, ROOT) | bindings
    assert "tvm_forest/bindings/go/forest.go" in names
    assert "tvm_forest/py.typed" in names
    assert {f"tvm_forest/{name}.ll" for name in LLVM_TEXTS} <= names


def test_the_wheel_brings_its_licence_and_its_command(wheel: ZipFile) -> None:
    about = {x.partition(".dist-info/")[2]: x for x in wheel.namelist() if ".dist-info/" in x}
    assert wheel.read(about["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert "tvm-forest = tvm_forest.cli:main" in wheel.read(about["entry_points.txt"]).decode()


def test_the_sdist_builds_and_tests_itself(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "pyproject.toml",
        "hatch_build.py",
        "Makefile",
        "mkdocs.yml",
        "LICENSE",
        "SECURITY.md",
    }
    assert needed | list_sources(PACKAGE, ROOT) | list_sources(ROOT / "docs", ROOT) <= names
    assert list_sources(ROOT / "bindings", ROOT) <= names
    assert "tests/repository/test_release.py" in names


def test_an_index_shows_links_that_lead_somewhere(metadata: Message) -> None:
    text = metadata.get_payload()
    assert (
        text.startswith("# tvm_forest") and metadata["Description-Content-Type"] == "text/markdown"
    )
    source = next(x for x in metadata.get_all("Project-URL") if x.startswith("Source, "))
    base = f"{source.removeprefix('Source, ')}/blob/v{tvm_forest.__version__}/"
    links = LINK.findall(text)
    assert base + "docs/gpu.md" in links
    own = [link.removeprefix(base).partition("#")[0] for link in links if link.startswith(base)]
    assert [link for link in own if not (ROOT / link).exists()] == []
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_one_version_stands_everywhere(metadata: Message) -> None:
    version = tvm_forest.__version__
    assert metadata["Version"] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_workflows_call_targets_that_there_are() -> None:
    targets = re.findall(
        r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    folder = ROOT / ".github" / "workflows"
    texts = {x.stem: x.read_text(encoding="utf-8") for x in folder.glob("*.yml")}
    if not texts:
        pytest.skip("the workflows are in the repository only")
    assert texts.keys() == {"docs", "systems", "tests", "wheels"}
    called = {x for text in texts.values() for x in re.findall(r"run: make (.+)", text)}
    assert {target for words in called for target in words.split()} <= set(targets)
    assert "run: .ci/run" in texts["tests"]


def test_a_workflow_tries_every_system_and_python() -> None:
    yaml = pytest.importorskip("yaml", reason="reads workflows; part of the extra 'docs'")
    folder = ROOT / ".github" / "workflows"
    if not folder.is_dir():
        pytest.skip("the workflows are in the repository only")
    workflows = {x.stem: yaml.safe_load(x.read_text(encoding="utf-8")) for x in folder.iterdir()}
    assert all(job["steps"] for each in workflows.values() for job in each["jobs"].values())
    jobs = workflows["systems"]["jobs"]
    matrix = jobs["fast"]["strategy"]["matrix"]
    systems = ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"]
    assert matrix["os"] == systems and jobs["fast"]["runs-on"] == "${{ matrix.os }}"
    assert matrix["python-version"] == PYTHONS
    commands = " ".join(step.get("run", "") for step in jobs["fast"]["steps"])
    files = re.findall(r"(?:tests|tools)/[\w/]+\.py", commands)
    assert len(files) > 1 and all((ROOT / file).is_file() for file in files)
    emulated = jobs["emulated"]["strategy"]["matrix"]["include"]
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [x["target"] for x in emulated if f"\n{x['target']}:" in text] == EMULATED


def test_pythons_that_were_not_tried_keep_their_rows() -> None:
    head = "| Python | versions |\n|---|---|\n"
    old = head + "| 3.9 | not tried |\n| 3.10 | oldest | 1 |\n| 3.10 | newest | 2 |\n"
    new = head + "| 3.9 | oldest | 3 |\n| 3.10 | not tried |\n| 3.11 | not tried |\n"
    rows = ("| 3.9 | oldest | 3 |", "| 3.10 | oldest | 1 |", "| 3.10 | newest | 2 |")
    assert join_rows(old, new) == head + "\n".join([*rows, "| 3.11 | not tried |", ""])
