"""Writes object files with compiled functions under chosen names.

takes: a library that LLVM has compiled, a prefix; gives: an object file.

TVM gives the functions of every model the same names, for all to see. Here they are renamed in
LLVM's language, which is translated after all optimisations, so that the code stays as it is:

    __tvm_ffi_predict                   airline_predict_compiled, hidden
    __TVMBackendAllocWorkspace          airline_AllocWorkspace_compiled, hidden, defined elsewhere
    TVMFFIErrorSetRaisedFromCStrParts   airline_raise_compiled, hidden, defined elsewhere
    __truncsfhf2, __extendhfsf2         of this object alone, for their code is of the target's CPU
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
"""Suffix of these names, which no other name of an exported library has."""

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
    ("-windows-msvc", "-windows-gnu"),  # so that compilers of GNU and Zig link what is made there
    (names.RAISE_NAME, f"@{{prefix}}raise{SUFFIX}"),
)
"""Patterns in LLVM IR, and their replacements."""


def write_object(library: tvm.runtime.Executable, file: Path, prefix: str) -> None:
    """Write the functions of a library, renamed, as an object file.

    Args:
        library: as it was compiled, not loaded.
        file: which ends with ".o".
        prefix: what the names of its functions begin with.
    """
    text = str(library.mod.inspect_source("ll"))
    for pattern, renamed in RENAMED:
        text = re.sub(pattern, renamed.replace("{prefix}", prefix), text, flags=re.MULTILINE)
    text = with_own_functions(text)
    with make_folder("export_library", 2 * len(text)) as folder:  # the object is smaller
        source = folder / "code.ll"
        source.write_text(text, encoding="utf-8")
        tvm_ffi.load_module(str(source), keep_module_alive=False).write_to_file(str(file))
