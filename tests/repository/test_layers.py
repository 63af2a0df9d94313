"""Imports go down only, few rooms may say tvm, and names keep what they promise.

A room is a file or folder directly under ``tvm_forest/``, or a folder inside that has a level.
Imports under ``if TYPE_CHECKING:`` do not count; imports inside functions do, and late ones. Files
that import each other in a circle lie in one room, and there all imports count.
"""

import ast
import functools
import re
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tvm_forest"
LEVELS = {
    "errors": 0,
    "system": 0,
    "system.values": 0,
    "system.cores": 0,
    "system.archive": 1,
    "schedule_prims.nest": 1,
    "system.process": 1,
    "target": 1,
    "system.code_cache": 2,
    "forest": 2,
    "system.late": 2,
    "runtime.gpu": 3,
    "forest.contributions": 3,
    "frontends": 3,
    "predictor.inputs": 3,
    "tir_gen.internals": 2,
    "layouts": 3,
    "forest.probe_rows": 3,
    "runtime.threads": 3,
    "runtime": 4,
    "schedule_prims": 4,
    "tir_gen": 6,
    "passes": 7,
    "layouts.laying_out": 7,
    "targets": 8,
    "compiler": 9,
    "search.machines": 9,
    "search": 10,
    "predictor": 11,
    "search.measuring": 12,
    "monitoring": 12,
    "streams": 12,
    "quantiles": 12,
    "relax": 12,
    "verification": 12,
    "viz": 12,
    "serving": 13,
    "api": 13,
    "estimators": 14,
    "mlflow": 14,
    "patching": 14,
    "cli": 15,
    "__main__": 16,
    "__init__": 14,
    "clusters": 14,
    "spark": 15,
    "ray": 15,
    "dask": 15,
}
TVM_ROOMS = {
    "tir_gen.internals",
    "tir_gen",
    "passes",
    "runtime.threads",
    "targets",
    "compiler",
    "predictor",
    "relax",
}
TVM_ROOMS |= {"search.measuring"}
TVM = {"tvm", "tvm_ffi"}
FFI = {"runtime"}  # what runs without tvm, and needs tvm_ffi to call functions
LATE_TVM = {"layouts"}  # what packs without tvm, and imports it inside functions to read
TRAINERS = {"treelite", "xgboost", "onnx", "lightgbm", "sklearn", "onnxruntime", "torch"}
TYPES_ONLY = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
BASES = {"sklearn"}  # what estimators may import: its classes derive from scikit-learn's
MODULES = {"torch"}  # what relax may import: forests in its modules derive from its classes
DEMO = {"sklearn", "xgboost"}  # what the demo of cli may import, inside functions


REFUSES = re.compile("_?refuse(_|$)")
RAISES = {"None", "NoReturn", "Iterator[None]"}
"""What functions return that raise, or turn other errors into ours."""
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    module: str
    line: int
    in_function: bool


def imports(node: ast.AST, package: str, in_function: bool = False) -> Iterator[Import]:
    """Yield what `node` imports at run time, by absolute name."""
    waiting = [(node, in_function)]
    while waiting:
        node, in_function = waiting.pop()
        if isinstance(node, ast.expr_context | ast.operator | ast.Constant | ast.Name):
            continue  # most of all nodes, and nothing is in them
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) in TYPES_ONLY:
            children = iter(node.orelse)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in modules_named(node, package):
                yield Import(module, node.lineno, in_function)
        if name := module_of_late(node):
            yield Import(name, node.lineno, True)
        inside = in_function or isinstance(node, FUNCTION | ast.Lambda)
        waiting += [(child, inside) for child in children]


def module_of_late(node: ast.AST) -> str:
    """Return the module that a call of `import_late` names; "" for other nodes."""
    is_late = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if not is_late or node.func.id != "import_late":
        return ""
    (module,) = node.args
    assert isinstance(module, ast.Constant), "import_late takes the name of a module as it is"
    return str(module.value)


def modules_named(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """List the modules of one statement; `from . import a, b` may name two."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = resolve_name("." * node.level + (node.module or ""), package)
    inner = [f"{base}.{alias.name}" for alias in node.names]
    return [x if x.removeprefix("tvm_forest.") in LEVELS else base for x in inner]


def room_of(module: str) -> str:
    """Name the room of a module of the package."""
    parts = module.split(".")[1:] or ["__init__"]
    inner = ".".join(parts[:2])
    return inner if inner in LEVELS else parts[0]


def fault(room: str, found: Import) -> str | None:
    """Say which rule an import breaks, or None."""
    top = found.module.split(".")[0]
    if top == "tvm_forest":
        other = room_of(found.module)
        if other not in LEVELS:
            return f"imports '{other}', which has no level"
        if other != room and LEVELS[other] >= LEVELS[room]:
            return f"imports '{other}' of level {LEVELS[other]} from level {LEVELS[room]}"
    is_late = room in LATE_TVM and found.in_function
    is_ffi = room in FFI and top == "tvm_ffi"
    if top in TVM and room not in TVM_ROOMS and not (is_late or is_ffi):
        return f"may not import {top}"
    in_demo = room == "cli" and found.in_function and top in DEMO
    is_base = room == "estimators" and top in BASES
    is_module = room == "relax" and top in MODULES
    if top in TRAINERS and room != "frontends" and not (in_demo or is_base or is_module):
        return f"may not import {top}"
    return None


def faults(path: str, source: str) -> list[str]:
    """List the broken rules of one file; `path` is relative to the package."""
    parts = ("tvm_forest", *Path(path).with_suffix("").parts)
    room, package = room_of(".".join(parts)), ".".join(parts[:-1])
    if room not in LEVELS:
        return [f"{path}: room '{room}' has no level"]
    found = imports(ast.parse(source), package)
    return [f"{path}:{i.line}: {text}" for i in found if (text := fault(room, i))]


def name_module(path: str) -> str:
    """Name the module of a file of the package."""
    return ".".join(("tvm_forest", *Path(path).with_suffix("").parts)).removesuffix(".__init__")


class Facts(NamedTuple):
    """What is in a file of the package.

    Attributes:
        imported: for each import, the modules that it may name: those inside first, or the outer.
        classes: names of classes, each with its place.
        not_raising: functions that refuse by their names, and return something.
    """

    imported: list[tuple[set[str], str]]
    classes: list[tuple[str, str]]
    not_raising: list[str]


@functools.cache
def facts_of(path: str) -> Facts:
    """Read a file of the package once for all tests."""
    module, found = name_module(path), Facts([], [], [])
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            found.imported.append(({f"{base}.{alias.name}" for alias in node.names}, base))
        elif name := module_of_late(node):
            found.imported.append((set(), name))
        elif isinstance(node, ast.ClassDef):
            found.classes.append((node.name, f"{path}:{node.lineno}"))
        elif isinstance(node, FUNCTION) and REFUSES.match(node.name):
            if ast.unparse(node.returns or node) not in RAISES:
                found.not_raising.append(f"{path}:{node.lineno} {node.name}")
    return found


def all_imports() -> dict[str, set[str]]:
    """Return which modules of the package each of them imports, late or for its types or not."""
    modules = {name_module(path) for path in FILES}
    links: dict[str, set[str]] = {}
    for path in FILES:
        named = [(inside & modules) or {base} for inside, base in facts_of(path).imported]
        links[name_module(path)] = set[str]().union(*named) & modules
    return links


def reachable(module: str, links: dict[str, set[str]]) -> set[str]:
    """Return the modules to which imports lead from one."""
    seen, waiting = set[str](), [module]
    while waiting:
        new = links[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_imports_go_down_only(path: str) -> None:
    assert faults(path, (PACKAGE / path).read_text(encoding="utf-8")) == []


def test_files_that_import_each_other_lie_in_one_room() -> None:
    links = all_imports()
    reached = {module: reachable(module, links) for module in links}
    circles = [(a, b) for a in links for b in links[a] if a in reached[b]]
    assert [(a, b) for a, b in circles if room_of(a) != room_of(b)] == []


def test_the_package_was_found() -> None:
    assert "compiler.py" in FILES


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("forest", "from .compiler import pack", "imports 'compiler' of level 9 from level 2"),
        ("forest", "import tvm_forest.api", "imports 'api' of level 13 from level 2"),
        ("forest", "from tvm_forest import api", "imports 'api' of level 13 from level 2"),
        ("forest", "from . import errors, viz", "imports 'viz' of level 12 from level 2"),
        (
            "schedule_prims/nest/a.py",
            "from ...target import detect",
            "'target' of level 1 from level 1",
        ),
        ("search/beam.py", "from tvm_forest import build", "imports '__init__' of level 14"),
        ("search/beam.py", "from .measuring import tune", "imports 'search.measuring' of level 12"),
        (
            "predictor/parts/rounds.py",
            "def f():\n    from ... import api",
            "imports 'api' of level 13",
        ),
        (
            "runtime/threads/a.py",
            "def f():\n    from ...passes import b",
            "imports 'passes' of level 7",
        ),
        ("tir_gen/ops.py", "def f():\n    from .. import passes", "imports 'passes' of level 7"),
        ("target.py", "class A:\n    from .api import load", "imports 'api' of level 13"),
        (
            "compiler.py",
            "if X:\n    pass\nelse:\n    from . import api",
            "imports 'api' of level 13",
        ),
        ("compiler.py", "from .timing import measure", "imports 'timing', which has no level"),
        (
            "layouts/array.py",
            "if TYPE_CHECKING:\n    pass\nelse:\n    x = import_late('tvm_forest.api')",
            "imports 'api' of level 13",
        ),
        ("timing.py", "", "room 'timing' has no level"),
        ("schedule_prims/loops.py", "import tvm.tir", "may not import tvm"),
        ("forest/probe_rows.py", "import numpy as np, tvm", "may not import tvm"),
        ("search/cost.py", "def f():\n    from tvm import ir", "may not import tvm"),
        ("api.py", "import tvm_ffi", "may not import tvm_ffi"),
        ("runtime/loading.py", "def f():\n    import tvm", "may not import tvm"),
        ("layouts/array.py", "from tvm import tirx", "may not import tvm"),
        ("viz.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import tvm", "may not import tvm"),
        ("viz.py", "if not TYPE_CHECKING:\n    import tvm", "may not import tvm"),
        ("predictor/device.py", "import xgboost", "may not import xgboost"),
        ("api.py", "def f():\n    import treelite.frontend", "may not import treelite"),
        ("cli.py", "import sklearn.datasets", "may not import sklearn"),
        ("cli.py", "def demo():\n    import lightgbm", "may not import lightgbm"),
        ("forest/rewrites/tiling.py", "from onnx import load", "may not import onnx"),
        ("estimators/forests.py", "import xgboost", "may not import xgboost"),
        ("predictor/device.py", "import torch", "may not import torch"),
        ("relax/torch.py", "import xgboost", "may not import xgboost"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str, message: str) -> None:
    (found,) = faults(path, source)
    assert message in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("forest", "import numpy as np\nfrom .errors import ModelFormatError"),
        ("frontends/xgboost.py", "import xgboost, treelite\nfrom .support import accepted"),
        ("frontends/__init__.py", "from . import xgboost\nfrom ..forest import Forest"),
        (
            "schedule_prims/loops.py",
            "if TYPE_CHECKING:\n    import tvm\n    from ..api import load",
        ),
        ("tir_gen/ops.py", "if typing.TYPE_CHECKING:\n    from ..passes import dump"),
        (
            "compiler.py",
            "import tvm, tvm_ffi\nfrom . import errors, tir_gen\nfrom .targets import cpu",
        ),
        ("cli.py", "from . import api\ndef demo():\n    import sklearn.datasets, xgboost"),
        ("estimators/forests.py", "from sklearn.base import BaseEstimator\nfrom .. import api"),
        ("predictor/predictor.py", "def f():\n    from .saving import save"),
        ("search/measuring/__init__.py", "from ...predictor.building import build"),
        ("relax/torch.py", "import torch"),
        ("runtime/loading.py", "import tvm_ffi"),
        ("__init__.py", "def __getattr__(name):\n    from . import api"),
        ("layouts/tir.py", "def __getattr__(name):\n    from tvm import tirx"),
    ],
)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    assert faults(path, source) == []


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for name, place in (x for path in FILES for x in facts_of(path).classes):
        places.setdefault(name, []).append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_what_refuses_raises() -> None:
    found = [x for path in FILES for x in facts_of(path).not_raising]
    asks = " refuse_unseen"  # asks a forest to refuse rows
    assert [x for x in found if not x.endswith(asks)] == []
    assert any(x.endswith(asks) for x in found)
