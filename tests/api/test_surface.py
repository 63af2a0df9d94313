"""The public names, and what it costs to import them."""

import ast
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tvm_forest
from programs import run

SLOW_TO_IMPORT = ["tvm", "tvm_ffi", "treelite", "xgboost", "sklearn", "scipy", "pandas"]
REPORT = f"""
import sys
print(*[name for name in {SLOW_TO_IMPORT} if name in sys.modules], file=sys.stderr)
"""
HELP = """
import sys
from tvm_forest.cli import main
sys.argv = ["tvm-forest", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code
"""
IMPORT_ALL = """
import importlib, pkgutil, tvm_forest
before = {name: getattr(tvm_forest, name) for name in tvm_forest.__all__}
for module in pkgutil.walk_packages(tvm_forest.__path__, "tvm_forest."):
    if module.name != "tvm_forest.relax.torch":  # needs PyTorch, which the tests do not install
        importlib.import_module(module.name)
changed = [name for name in before if getattr(tvm_forest, name) is not before[name]]
assert not changed, changed
"""

TRAVELS = """
import sys, types, cloudpickle, tvm_forest, tvm_forest.compiler
from tvm_forest import Schedule
def named():
    shown = tvm_forest.lower, tvm_forest.profile, tvm_forest.verify, Schedule
    return [type(x).__name__ for x in shown]
if sys.argv[1:] == ["by value"]:  # a function of a module that is not elsewhere
    own = sys.modules["own"] = types.ModuleType("own")
    named.__module__ = "own"
    own.named = named
    cloudpickle.register_pickle_by_value(own)
sys.stdout.buffer.write(cloudpickle.dumps(named))
"""
ARRIVES = """
import sys, cloudpickle
found = cloudpickle.loads(sys.stdin.buffer.read())()
assert found == ["function"] * 3 + ["type"], found
"""


@pytest.mark.parametrize("way", ["by reference", "by value"])
@pytest.mark.cases(1)
def test_functions_that_name_the_package_travel_to_other_processes(way: str) -> None:
    start = [sys.executable, "-c"]
    sent = subprocess.run([*start, TRAVELS, way], capture_output=True)
    assert sent.returncode == 0, sent.stderr.decode()
    done = subprocess.run([*start, ARRIVES], input=sent.stdout, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def public_objects() -> Iterator[tuple[str, object]]:
    """Yield the public classes and functions, and the public members of the classes."""
    for name in tvm_forest.__all__:
        value = getattr(tvm_forest, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            yield name, value
        for member, part in vars(value).items() if inspect.isclass(value) else ():
            documented = inspect.isroutine(part) or isinstance(part, property)
            if documented and not member.startswith("_"):
                yield f"{name}.{member}", part


def test_all_is_sorted_and_equals_the_public_names() -> None:
    public = [
        name
        for name in dir(tvm_forest)
        if not name.startswith("_") and not inspect.ismodule(getattr(tvm_forest, name))
    ]
    assert list(tvm_forest.__all__) == sorted(set(tvm_forest.__all__))
    assert [name for name in tvm_forest.__all__ if not name.startswith("_")] == public


def test_there_are_public_names_and_each_exists() -> None:
    assert {"build", "load"} <= set(tvm_forest.__all__)
    assert all(getattr(tvm_forest, name) is not None for name in tvm_forest.__all__)


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse(Path(tvm_forest.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == tvm_forest._ROOM_OF


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        tvm_forest.no_such_name  # noqa: B018


def test_every_public_class_and_function_has_a_docstring() -> None:
    assert [name for name, value in public_objects() if not inspect.getdoc(value)] == []


def test_no_module_has_a_public_name_which_its_import_would_hide() -> None:
    modules = {module.name for module in pkgutil.iter_modules(tvm_forest.__path__)}
    assert "frontends" in modules
    assert modules & {*tvm_forest.__all__} == set()


@pytest.mark.long
def test_the_import_of_a_module_hides_no_public_name() -> None:
    run(IMPORT_ALL)


@pytest.mark.parametrize("source", ["import tvm_forest", HELP], ids=["package", "help"])
def test_what_people_do_first_imports_nothing_slow(source: str) -> None:
    assert run(source + REPORT).stderr.split() == []


def test_a_slow_import_would_be_noticed() -> None:
    assert "treelite" in run("import treelite" + REPORT).stderr.split()


def test_help_names_the_commands() -> None:
    shown = run(HELP).stdout
    assert all(command in shown for command in ("info", "predict", "demo"))
