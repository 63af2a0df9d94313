"""Runs a Python program as `python` does, with `patch` in effect.

takes: the words of a command line; gives: the exit status of the program, and a printed summary.
"""

from __future__ import annotations

import atexit
import builtins
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ForestError
from . import patch
from .records import AFTER_S

USAGE = "usage: tvm-forest run [--after-s S] (script.py | -m module) [argument ...]"
_FAILED, _WRONG = 1, 2
"""Exit codes of a program that raises, and of a wrong command line."""


def run(words: Sequence[str]) -> int:
    """Run a program, patched, and print the summary when the process exits.

    Args:
        words: options of `tvm-forest run`, then a script, or `-m` and a module, then the arguments
            of the program.

    Returns:
        int: the exit status; of words that make no sense, after a message, that of a wrong usage.

    Raises:
        SystemExit: if the program raises it.
    """
    words, after_s = list(words), AFTER_S
    try:
        if words[:1] == ["--after-s"]:
            after_s = float(words[1])
            del words[:2]
        is_module = words[:1] == ["-m"]
        name, *arguments = words[1:] if is_module else words
        if name[:1] == "-":
            raise ValueError
        patched = patch(after_s=after_s)
    except ForestError as error:
        print(f"tvm-forest: {error}", file=sys.stderr)
        return _WRONG
    except (IndexError, ValueError):
        print(USAGE, file=sys.stderr)
        return _WRONG
    atexit.register(_tell, patched)  # registered first, so it runs after the program's functions
    sys.argv[:] = [name, *arguments]
    return _guard(lambda: _run_module(name) if is_module else _run_script(name))


def _tell(patched: object) -> None:
    """Print the summary; a closed output is ignored."""
    try:
        print(patched, file=sys.stderr, flush=True)
    except (AttributeError, OSError, ValueError):
        pass


def _guard(program: Callable[[], None]) -> int:
    """Run a program and return its exit status.

    Tracebacks are shown as Python does, without frames of this package.
    """
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and _is_before(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)  # so that the shell sees the interrupt
        return _FAILED
    return 0


def _is_before(file: str) -> bool:
    """Return whether a file holds code that starts the program, which tracebacks leave out."""
    return file in (__file__, runpy.__file__) or file.startswith("<frozen ")


def _set_first_path(folder: str) -> None:
    """Set the first entry of `sys.path`, which was the folder of the command `tvm-forest`."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _run_module(name: str) -> None:
    _set_first_path(str(Path.cwd()))
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    loader: Any = None if spec is None else spec.loader
    if spec is None or not hasattr(loader, "get_code"):
        print(f"{sys.executable}: No module named {name}", file=sys.stderr)
        raise SystemExit(_FAILED)
    sys.argv[0] = str(spec.origin)
    code = loader.get_code(spec.name)
    _execute(code, spec.origin, loader, __spec__=spec, __cached__=spec.cached)


def _execute(code: Any, file: str | None, loader: Any, **names: Any) -> None:
    """Run the code of the program as the module `__main__`.

    The module is kept after its last line: the program's threads, and functions that it registered
    with `atexit`, may still use it.
    """
    module = types.ModuleType("__main__")
    names = {"__spec__": None, "__cached__": None, "__annotations__": {}, **names}
    package = getattr(names["__spec__"], "parent", None)
    names |= {"__file__": file, "__loader__": loader, "__package__": package}
    vars(module).update(names, __builtins__=builtins)
    sys.modules["__main__"] = module
    exec(code, vars(module))


def _run_script(name: str) -> None:
    """Run a file, or a folder or archive with a `__main__.py`."""
    path = Path(name)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        del sys.path[: not getattr(sys.flags, "safe_path", False)]
        runpy.run_path(name, run_name="__main__")
        return
    try:
        source = path.read_bytes()
    except OSError as error:
        about = f"can't open file '{Path.cwd() / name}': [Errno {error.errno}]"
        print(f"{sys.executable}: {about} {error.strerror}", file=sys.stderr)
        raise SystemExit(_WRONG) from None
    _set_first_path(str(path.resolve().parent))
    file = str(Path.cwd() / name)
    code = compile(source, file, "exec", dont_inherit=True)
    _execute(code, file, SourceFileLoader("__main__", file))
