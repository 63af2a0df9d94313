"""Programs under `tvm-forest run` do what they do under `python`."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
WHAT = """
import sys, atexit, os
print(__name__, __file__, sys.argv, sys.path[0], __spec__ is None, __doc__)
print(sys.modules["__main__"].__dict__ is globals(), type(__builtins__).__name__)
atexit.register(lambda: print("end of", __name__, WORD))
WORD = "program"
"""
RAISES = (
    WHAT
    + """
def fail():
    raise ValueError("no such thing")
fail()
"""
)
PROGRAMS = {
    "ends": WHAT,
    "returns three": WHAT + "sys.exit(3)",
    "says why": WHAT + "sys.exit('a reason')",
    "raises": RAISES,
    "has its own hook": WHAT + "sys.excepthook = lambda *e: print('hook', e[1])\n1 / 0",
    "is no Python": "x = (\n",
    "is killed": WHAT + "sys.stdout.flush()\nos.kill(os.getpid(), 15)",
    "is interrupted": WHAT + "raise KeyboardInterrupt",
}


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a command of Python."""
    env = {"PYTHONPATH": str(PROJECT), "PATH": ""}
    done = subprocess.run([sys.executable, *words], capture_output=True, cwd=folder, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.cases(5, others="long")
def test_a_script_does_what_it_does_under_python(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "script.py").write_text(PROGRAMS[name])
    words = ["folder/script.py", "one", "-m", "--after-s", "-v"]
    status, output, errors = run(tmp_path, *words)
    found = run(tmp_path, "-m", "tvm_forest", "run", *words)
    assert found[:2] == (status, output)
    summary = "" if name == "is killed" else "tvm-forest: no forest has predicted\n"
    assert found[2] == errors + summary


@pytest.mark.parametrize("source", [WHAT + "sys.exit(4)", RAISES], ids=["exits", "raises"])
def test_a_module_does_what_it_does_under_python(tmp_path: Path, source: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "module.py").write_text(source.replace("atexit.register", "str"))
    status, output, errors = run(tmp_path, "-m", "package.module", "--one", "-m")
    found = run(tmp_path, "-m", "tvm_forest", "run", "-m", "package.module", "--one", "-m")
    assert found[:2] == (status, output)
    assert "package.module" not in errors or "runpy" not in found[2]
    assert errors.splitlines()[-1:] == found[2].splitlines()[-2:-1]


def test_a_script_that_is_not_there_is_told_as_python_tells_it(tmp_path: Path) -> None:
    status, _, errors = run(tmp_path, "missing.py")
    found = run(tmp_path, "-m", "tvm_forest", "run", "missing.py")
    assert (found[0], found[2].splitlines()[0]) == (status, errors.splitlines()[0])


@pytest.mark.parametrize("words", [[], ["-m"], ["--after-s", "x", "a.py"], ["--other", "a.py"]])
def test_words_that_name_no_program_are_refused(words: list[str], capsys) -> None:
    from tvm_forest.cli import main

    assert main(["run", *words]) == 2
    assert "usage: tvm-forest run" in capsys.readouterr().err


def test_an_option_of_ours_that_is_wrong_is_refused(capsys) -> None:
    from tvm_forest.cli import main

    assert main(["run", "--after-s", "-1", "a.py"]) == 2
    assert "patch: argument 'after_s'" in capsys.readouterr().err


SCORES = """
import time
from sklearn.ensemble import RandomForestRegressor
import numpy as np

rows = np.random.default_rng(0).normal(size=(300, 5))
model = RandomForestRegressor(5, max_depth=3, random_state=0).fit(rows, rows[:, 0])
first, end = model.predict(rows), time.monotonic() + 120
while time.monotonic() < end:
    assert (model.predict(rows) == first).all()
    from tvm_forest import patching
    if "rows compiled" in str(patching.patch(after_s=0)):
        break
print("equal")
"""


@pytest.mark.long
def test_a_script_ends_with_what_ran_compiled(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", minversion="1.6")
    (tmp_path / "script.py").write_text(SCORES)
    words = ["-m", "tvm_forest", "-v", "run", "--after-s", "0", "script.py"]
    status, output, errors = run(tmp_path, *words)
    assert (status, output) == (0, "equal\n"), errors
    summary = errors[errors.index("tvm-forest: what has predicted") :]
    assert "  RandomForestRegressor: 1 calls, 300 rows compiled\n" in summary
    assert "tvm_forest.patching: RandomForestRegressor runs compiled\n" in errors
