"""Writes object files with compiled functions under chosen names.

takes: a library that LLVM has compiled, a prefix; gives: an object file.

TVM exports the functions of every model under the same names. Here they are renamed in LLVM IR that
is already optimised, so the code itself does not change:

    __tvm_ffi_predict                   airline_predict_compiled, hidden
    __TVMBackendAllocWorkspace          airline_AllocWorkspace_compiled, hidden, defined elsewhere
    TVMFFIErrorSetRaisedFromCStrParts   airline_raise_compiled, hidden, defined elsewhere
    __truncsfhf2, __extendhfsf2         local to this object, for their code needs the target's CPU
    llvm.exp.f32, log1p and the like    functions of our own, see `own_functions`
"""

from __future__ import annotations

import re
from pathlib import Path

import tvm
import tvm_ffi

from ..system.process.scratch import make_folder
from ..tir_gen.internals import names
from .own_functions import with_own_functions

SUFFIX = "_compiled"
"""Suffix of the new names; no other name in an exported library has it."""

RENAMED = (
    (names.DLL_EXPORT, r"\1\2"),
    (names.CALLABLE, r"define \1hidden \2"),
    (names.BACKEND_VARIABLE, r"\1 = external hidden global ptr"),
    (names.COMDAT, ""),
    (names.IN_COMDAT, r"\1 {"),
    (names.RAISE, r"declare hidden \1"),
    (names.HALF_FLOATS, r"define internal \2"),
    (names.CALLABLE_NAME, rf"@{{prefix}}\1{SUFFIX}"),
    (names.BACKEND_NAME, rf"@{{prefix}}\1{SUFFIX}"),
    ("-windows-msvc", "-windows-gnu"),  # so that GCC and Zig can link objects made on Windows
    (names.RAISE_NAME, f"@{{prefix}}raise{SUFFIX}"),
)
"""Patterns in LLVM IR, and their replacements."""


def write_object(library: tvm.runtime.Executable, file: Path, prefix: str) -> None:
    """Write the functions of a library, renamed, as an object file.

    Args:
        library: an executable that was compiled in this process, not one that was loaded.
        file: path of the object file, with the suffix ".o".
        prefix: prefix of the names of all its functions.

    Raises:
        BuildError: there is no room for temporary files.
    """
    text = str(library.mod.inspect_source("ll"))
    for pattern, renamed in RENAMED:
        text = re.sub(pattern, renamed.replace("{prefix}", prefix), text, flags=re.MULTILINE)
    text = with_own_functions(text)
    with make_folder("export_library", 2 * len(text)) as folder:  # the object is smaller
        source = folder / "code.ll"
        source.write_text(text, encoding="utf-8")
        tvm_ffi.load_module(str(source), keep_module_alive=False).write_to_file(str(file))
