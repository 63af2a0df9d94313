"""Caches machine code by its content, for all processes.

takes: a text that identifies a lowered module, and the compiled library; gives: the library again,
in this process or another one.

A lowered module does not contain the model's arrays, so models of one shape share their code.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ..errors import BuildError
from ..runtime import Library
from ..runtime.loading import LINKED
from ..system.archive import Archive
from ..system.code_cache import CodeCache, digest, digest_sources
from ..target import Target
from . import machine_code
from .stored_code import find_code_cache, load_kept, load_library, to_machine_code

LOG = logging.getLogger(__name__)


class CodeKeeper(NamedTuple):
    """The cache of machine code for a target.

    Attributes:
        cache: the cache in the user's folder.
        target: target of the code.
        machine: text of all facts, besides this package, on which compilation depends.
    """

    cache: CodeCache
    target: Target
    machine: str

    @classmethod
    def of(cls, target: Target) -> CodeKeeper | None:
        """Return the keeper for a target; None if the cache is off, or not for this target.

        Raises:
            InputError, BuildError: see `cpu.tvm_target`.
        """
        cache = find_code_cache(target)
        return None if cache is None else cls(cache, target, machine_code.describe(target))

    def find(self, text: str) -> tuple[str, Library | None]:
        """Return the key for a text that identifies code, and the cached library or None."""
        key = digest("code", digest_sources(), self.machine, text)
        return key, load_kept(self.cache, key, self.target)

    def keep(self, key: str, library: Library) -> Library:
        """Store a library; return the copy loaded from the stored code if it is a shared library.

        LLVM then translates it only once. Without a linker, or without room for files, the given
        library is returned.
        """
        try:
            code = to_machine_code(library, self.target)
        except BuildError as error:  # no room for temporary files; the library itself needs none
            LOG.warning("%s keeps nothing: %s", self.cache.folder, error)
            return library
        about = {"form": code.form, "made_for": code.made_for}
        self.cache.write(key, Archive(about, {f"code.{code.form}": code.data}))
        if code.form != LINKED:
            return library
        return load_library(code, self.target) or library
