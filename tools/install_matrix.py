"""Install the built wheel into bare environments, predict in each, and say what it weighs.

    python tools/install_matrix.py dist/tvm_forest-*.whl [--pythons 3.10 3.13] [--write]

takes: a wheel, and the interpreters of the machine that `uv` finds; gives: a table of environments,
Python by Python, with the oldest and the newest versions of what the wheel asks for; and one of the
sizes of the optional parts. With `--write` they go into docs/installing.md, where Pythons that were
not tried keep their rows, so that another machine can try those that this one lacks. Ends with
status 1 if an environment predicts wrongly. `make install-matrix` installs `uv` and runs it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "installing.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SHOWN = ("apache-tvm", "apache-tvm-ffi", "numpy", "rich")
FEW = 6
"""Packages of a part that are all named."""
NOT_TRIED = "not tried"
FOR_DEVELOPERS = re.compile(r"test|lint|plot|dev|docs|release|torch|coverage|bench.*")
"""Optional parts whose size no user asks for; torch alone is some GB."""

PROGRAM = """
import importlib.util, sys
from pathlib import Path
import numpy as np
import tvm_forest

data = Path(sys.argv[1])
then = np.load(data / "xgboost-3.1.1.npz")
assert Path(tvm_forest.__file__).is_relative_to(sys.prefix), tvm_forest.__file__
for name in ("xgboost", "sklearn", "scipy", "treelite", "pandas"):
    assert importlib.util.find_spec(name) is None, name
for name in ("logistic", "classes", "dart"):
    predictor = tvm_forest.build(data / f"xgboost-3.1.1-{name}.json")
    predictor.save("model.tvmf")
    loaded = tvm_forest.load_predictor("model.tvmf")
    again = tvm_forest.load_predictor("model.tvmf", recompile=True)
    for one in (predictor, loaded, again):
        for rows in (then["rows"], then["rows"][:1], then["rows"][:33]):
            found = one.predict_margin(rows)
            expected = then[f"{name}_margin"][: len(rows)].reshape(found.shape)
            assert found.tobytes() == expected.tobytes(), (name, len(rows))
        few = one._small_batches.margins(np.ascontiguousarray(rows[:1], np.float32))
        assert few.tobytes() == found[:1].tobytes(), "calls of few rows are not builtin functions"
"""
"""Predicts what XGBoost has predicted, bit for bit, where XGBoost is not installed."""


def run(*command: str | Path, folder: Path | None = None) -> str:
    """Run a command and return what it prints, or raise with what it said."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def read_requirements(wheel: Path) -> dict[str, list[str]]:
    """Return what a wheel asks for by itself, under the name "", and for each optional part."""
    with ZipFile(wheel) as archive:
        (name,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(archive.read(name).decode())
    asked: dict[str, list[str]] = {part: [] for part in ["", *fields.get_all("Provides-Extra", [])]}
    for line in fields.get_all("Requires-Dist", []):
        part = re.search(r"extra == '(.+?)'", line)
        asked[part[1] if part else ""].append(line)
    return asked


def make_environment(folder: Path, python: str, what: list[str], *options: str) -> Path:
    """Make a bare environment, install into it, and return its interpreter."""
    run("uv", "venv", "-q", "--clear", "--python", python, folder)
    found = folder / "bin" / "python"
    run("uv", "pip", "install", "-q", "--python", found, *options, *what)
    return found


def list_versions(python: Path) -> dict[str, str]:
    """Return the versions of all that an environment holds."""
    printed = run("uv", "pip", "list", "--python", python, "--format", "freeze")
    return dict(line.split("==") for line in printed.split() if "==" in line)


def weigh(folder: Path) -> float:
    """Return the size of all files of a folder in MB."""
    return sum(x.stat().st_size for x in folder.rglob("*") if x.is_file()) / 1e6


def check(python: Path, folder: Path) -> None:
    """Predict in an environment, and call the command line."""
    folder.mkdir()
    run(python, "-I", "-c", PROGRAM, ROOT / "tests" / "data", folder=folder)
    program = python.with_name("tvm-forest")
    assert "tvm-forest" in run(program, "--version", folder=folder)
    assert "trees" in run(program, "info", folder / "model.tvmf", folder=folder)
    run("uv", "pip", "check", "--python", python)


def try_python(wheel: Path, version: str, folder: Path) -> list[str]:
    """Return the rows of one Python: its oldest and its newest environment."""
    found = subprocess.run(
        ["uv", "python", "find", "--no-python-downloads", version], capture_output=True, text=True
    )
    if found.returncode:
        return [f"| {version} | {NOT_TRIED} | | | | | |"]
    lines = []
    required = read_requirements(wheel)[""]
    for kind, resolution in (("oldest", "lowest-direct"), ("newest", "highest")):
        place = folder / f"{version}-{kind}"
        what = [str(wheel), *required]
        python = make_environment(
            place,
            found.stdout.strip(),
            what,
            "--only-binary=:all:",
            "--refresh-package=tvm-forest",
            f"--resolution={resolution}",
        )
        weight = weigh(place)  # before Python writes its own caches
        check(python, folder / f"{version}-{kind}-work")
        versions = list_versions(python)
        shown = " | ".join(versions[name] for name in SHOWN)
        lines.append(f"| {version} | {kind} | {shown} | {weight:.0f} |")
        print(lines[-1], flush=True)
        shutil.rmtree(place)
    return lines


def weigh_part(
    wheel: Path, part: str, asked: list[str], python: str, base: dict[str, str], folder: Path
) -> str:
    """Return the row of one optional part: what it adds, and what that weighs.

    Of many packages, those that the part asks for itself are named. Wheels are made where there is
    none, as of PySpark.
    """
    place = folder / f"part-{part}"
    found = make_environment(place, python, [f"{wheel}[{part}]"])
    added = sorted(set(list_versions(found)) - set(base))
    own = {re.split(r"[^\w.-]", line)[0].lower() for line in asked}
    named = [name for name in added if name in own or len(added) <= FEW]
    others = len(added) - len(named)
    brings = ", ".join(named) + (f", and {others} more" if others else "")
    line = f"| `{part}` | {weigh(place):.0f} | {brings} |"
    print(line, flush=True)
    shutil.rmtree(place)
    return line


def try_pythons(wheel: Path, pythons: list[str], folder: Path) -> str:
    """Return the table of environments."""
    rows = [line for version in pythons for line in try_python(wheel, version, folder)]
    head = (
        "| Python | versions | " + " | ".join(SHOWN) + " | MB |\n|---|---|---|---|---|---|---:|\n"
    )
    return head + "\n".join(rows) + "\n"


def weigh_parts(wheel: Path, folder: Path) -> str:
    """Return the table of optional parts."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    plain = make_environment(folder / "plain", python, [str(wheel)])
    base = list_versions(plain)
    rows = [f"| none | {weigh(folder / 'plain'):.0f} | {', '.join(sorted(base))} |"]
    rows += [
        weigh_part(wheel, part, asked, python, base, folder)
        for part, asked in read_requirements(wheel).items()
        if part and not FOR_DEVELOPERS.fullmatch(part)
    ]
    return "| part | MB | what it brings |\n|---|---:|---|\n" + "\n".join(rows) + "\n"


def join_rows(old: str, new: str) -> str:
    """Return a new table of environments, with the old rows of Pythons that were not tried anew."""
    rows = {}
    for row in [*old.splitlines()[2:], *new.splitlines()[2:]]:
        version, kind = (cell.strip() for cell in row.split("|")[1:3])
        rows[int(version.partition(".")[2]), kind] = row
    by_version = sorted(rows, key=lambda x: x[0])
    tried = {version for version, kind in rows if kind != NOT_TRIED}
    kept = [rows[x] for x in by_version if x[1] != NOT_TRIED or x[0] not in tried]
    return "\n".join([*new.splitlines()[:2], *kept]) + "\n"


def write_page(tables: dict[str, str]) -> None:
    """Put tables into the page, each behind its mark."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name} -->\n\n)(.*?)(\n<!-- end -->)", re.DOTALL)
        (old,) = (found[2] for found in marked.finditer(text))
        joined = join_rows(old, table) if name == "matrix" else table
        text = marked.sub(lambda found, joined=joined: f"{found[1]}{joined}{found[3]}", text)
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--no-parts", action="store_true", help="do not weigh the optional parts")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/installing.md"
    )
    chosen = parser.parse_args()
    wheel = chosen.wheel.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        result = {"matrix": try_pythons(wheel, chosen.pythons, Path(temporary))}
        if not chosen.no_parts:
            result["sizes"] = weigh_parts(wheel, Path(temporary))
    print("\n".join(result.values()))
    if chosen.write:
        write_page(result)


if __name__ == "__main__":
    main()
