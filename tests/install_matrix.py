"""Install the built wheel into bare environments, predict in each, and say what it weighs.

    python tests/install_matrix.py dist/tvm_forest-*.whl [--pythons 3.10 3.13] [--write]

takes: a wheel, and the interpreters of the machine that `uv` finds; gives: a table of environments,
Python by Python, with the oldest and the newest versions of what the wheel asks for; and one of the
sizes of the optional parts. With `--write` both go into docs/installing.md. Ends with status 1 if
an environment predicts wrongly. `make install-matrix` installs `uv` and runs it.
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
FOR_DEVELOPERS = re.compile(r"test|lint|plot|dev|docs|release|torch|bench.*")
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
"""
"""Predicts what XGBoost has predicted, bit for bit, where XGBoost is not installed."""


def run(*command: str | Path, folder: Path | None = None) -> str:
    """Run a command and return what it prints, or raise with what it said."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def read_requirements(wheel: Path) -> tuple[list[str], list[str]]:
    """Return what a wheel asks for, and the names of its optional parts."""
    with ZipFile(wheel) as archive:
        (name,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(archive.read(name).decode())
    asked = fields.get_all("Requires-Dist", [])
    return [x for x in asked if "extra ==" not in x], fields.get_all("Provides-Extra", [])


def make_environment(folder: Path, python: str, what: list[str], *options: str) -> Path:
    """Make a bare environment, install wheels only, and return its interpreter."""
    run("uv", "venv", "-q", "--clear", "--python", python, folder)
    found = folder / "bin" / "python"
    command = ["uv", "pip", "install", "-q", "--python", str(found), "--only-binary", ":all:"]
    run(*command, *options, *what)
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
        return [f"| {version} | not tried | | | | | |"]
    lines = []
    required, _ = read_requirements(wheel)
    for kind, resolution in (("oldest", "lowest-direct"), ("newest", "highest")):
        place = folder / f"{version}-{kind}"
        what = [str(wheel), *required]
        python = make_environment(
            place,
            found.stdout.strip(),
            what,
            "--refresh-package=tvm-forest",
            "--resolution",
            resolution,
        )
        weight = weigh(place)  # before Python writes its own caches
        check(python, folder / f"{version}-{kind}-work")
        versions = list_versions(python)
        shown = " | ".join(versions[name] for name in SHOWN)
        lines.append(f"| {version} | {kind} | {shown} | {weight:.0f} |")
        print(lines[-1], flush=True)
        shutil.rmtree(place)
    return lines


def weigh_part(wheel: Path, part: str, python: str, base: dict[str, str], folder: Path) -> str:
    """Return the row of one optional part: what it adds, and what that weighs."""
    place = folder / f"part-{part}"
    found = make_environment(place, python, [f"{wheel}[{part}]"])
    added = sorted(set(list_versions(found)) - set(base))
    line = f"| `{part}` | {weigh(place):.0f} | {', '.join(added)} |"
    print(line, flush=True)
    shutil.rmtree(place)
    return line


def try_all(wheel: Path, pythons: list[str], folder: Path) -> dict[str, str]:
    """Return both tables."""
    rows = [line for version in pythons for line in try_python(wheel, version, folder)]
    _, parts = read_requirements(wheel)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    plain = make_environment(folder / "plain", python, [str(wheel)])
    base = list_versions(plain)
    sizes = [f"| none | {weigh(folder / 'plain'):.0f} | {', '.join(sorted(base))} |"]
    sizes += [
        weigh_part(wheel, part, python, base, folder)
        for part in parts
        if not FOR_DEVELOPERS.fullmatch(part)
    ]
    heads = (
        "| Python | versions | " + " | ".join(SHOWN) + " | MB |\n|---|---|---|---|---|---|---:|\n"
    )
    return {
        "matrix": heads + "\n".join(rows) + "\n",
        "sizes": "| part | MB | what it brings |\n|---|---:|---|\n" + "\n".join(sizes) + "\n",
    }


def write_page(tables: dict[str, str]) -> None:
    """Put the tables into the page, each behind its mark."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name} -->\n\n).*?(<!-- end -->)", re.DOTALL)
        text = marked.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/installing.md"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = try_all(chosen.wheel.resolve(), chosen.pythons, Path(temporary))
    print("\n".join(result.values()))
    if chosen.write:
        write_page(result)
