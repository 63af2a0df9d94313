"""What a layout outside the package imports, see `docs/new_layout.md`."""

from ..layouts.representation import (
    Buffers,
    BufferSpec,
    Columns,
    Expr,
    Hold,
    NodeTest,
    Representation,
    TreeAccess,
    find,
    register,
)

__all__ = [
    "BufferSpec",
    "Buffers",
    "Columns",
    "Expr",
    "Hold",
    "NodeTest",
    "Representation",
    "TreeAccess",
    "find",
    "register",
]
