"""Compiles the package's own LLVM code: the thread pool, calls of few rows and of ranges of rows.

takes: nothing; gives: this code as a module or an object file, and the function `SET_LAUNCHER`.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PrimType, StringImm

from ...system.process.scratch import make_folder
from ...tir_gen.internals.names import IMPORT_LLVM, PARALLEL_LAUNCH, TARGET_LINE
from .pool import SET_LAUNCHER

TEXTS = ("pool.ll", "few_rows.ll", "ranges.ll")
"""LLVM IR files of the package's own code, which form one module."""

INSTEAD = {"win32": ("windows.ll",), "darwin": ("macos.ll",)}
"""Files, by system, with the functions that our code calls and the system lacks."""

MAX_OBJECT_BYTES = 1 << 16
"""Room to reserve for the pool's object file, in bytes; the file takes a sixth of it."""

ZERO = tirx.const(0, "int32")

SLOT = f"""
@{PARALLEL_LAUNCH} = external global ptr
define i32 @tvm_forest_set_launcher(i64 %address) {{
  %launcher = inttoptr i64 %address to ptr
  store ptr %launcher, ptr @{PARALLEL_LAUNCH}
  ret i32 0
}}
"""
"""LLVM code behind `SET_LAUNCHER`: it sets the variable with the address that compiled code calls
to run a parallel loop. TVM itself sets the variable when it loads a library."""


def make_launcher_setter() -> tirx.PrimFunc:
    """Return the function `SET_LAUNCHER`, which is compiled into every library for this CPU.

    It takes an address, and makes the library run its parallel loops by the function there.
    """
    address = tirx.Var("address", "int64")
    done = tirx.call_extern("int32", "tvm_forest_set_launcher", address)
    body = tirx.AttrStmt(ZERO, IMPORT_LLVM, StringImm(SLOT), tirx.Evaluate(done))
    return tirx.PrimFunc([address], body).with_attr("global_symbol", SET_LAUNCHER)


def compile_pool() -> Any:
    """Return a compiled module of the package's own LLVM code, for the CPU at hand.

    Raises:
        BuildError: there is no room for temporary files.
    """
    with make_folder("build") as folder:
        file = folder / "pool.ll"
        file.write_text(f"{_target_lines()}\n{read_texts(sys.platform)}", "ascii")
        return tvm_ffi.load_module(str(file), keep_module_alive=False)


def read_texts(system: str) -> str:
    """Return the text of the package's own LLVM code for a system, such as "linux"."""
    names = (*TEXTS, *INSTEAD.get(system, ()))
    text = "\n".join(Path(__file__).with_name(name).read_text("ascii") for name in names)
    defined = set(re.findall(r"^define .*@(\w+)\(", text, flags=re.MULTILINE))
    return re.sub(
        r"^declare .*@(\w+)\(.*\n",
        lambda found: "" if found[1] in defined else found[0],
        text,
        flags=re.MULTILINE,
    )


@functools.cache
def make_pool_object() -> bytes:
    """Return the package's own LLVM code as an object file, to be linked into a library.

    Raises:
        BuildError: there is no room for temporary files.
    """
    with make_folder("build", MAX_OBJECT_BYTES) as folder:
        file = folder / "pool.o"
        compile_pool().write_to_file(str(file))
        return file.read_bytes()


def _target_lines(machine: Any = None) -> str:
    """Return the lines of LLVM IR that name the target machine; the default is this one."""
    nothing = tirx.PrimFunc([], tirx.Return(ZERO), PrimType("int32"))
    mod = tvm.IRModule({"nothing": nothing.with_attr("global_symbol", "nothing")})
    text = tvm.compile(
        mod, target=machine or tvm.target.Target({"kind": "llvm"})
    ).mod.inspect_source("ll")
    return "\n".join(line for line in text.splitlines() if re.match(TARGET_LINE, line))
