"""Temporary folders with enough room for the output of compilers.

takes: the name of an operation, a number of bytes; gives: a folder, or a BuildError that names the
full one.

LLVM ends the process if it cannot write a file. So the room that it may need is reserved for a
moment before it starts, and a full disk becomes a BuildError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import BuildError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errno values for a full disk, a user's full quota, and a process's limit of file sizes."""

UNKNOWN = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM}
"""Errno values of file systems that do not support reserving room, though they may have it."""


@contextlib.contextmanager
def make_folder(where: str, room: int = 0) -> Iterator[Path]:
    """Make a temporary folder that is removed when the block ends.

    Args:
        where: first words of an error, such as "build".
        room: bytes that must fit into the folder.

    Raises:
        BuildError: there is not enough room, for these bytes or for files that the block writes, or
            no folder for temporary files exists.
    """
    place, is_there = "any place for temporary files", False
    try:
        place = tempfile.gettempdir()
        # Windows cannot remove a library that is loaded, so the folder stays there.
        leaves = sys.platform == "win32"
        with tempfile.TemporaryDirectory("", "tvm_forest-", None, leaves) as name:
            _ask_for_room(Path(name, "room"), room)
            is_there = True
            yield Path(name)
    except OSError as error:
        if is_there and error.errno not in FULL:
            raise
        needed = f", {room / 1e6:.1f} MB are needed" if room else ""
        remedy = (
            "raise the limit that `ulimit -f` shows"
            if error.errno == errno.EFBIG
            else "make room there, or let the environment variable TMPDIR name another folder "
            "before Python starts"
        )
        raise BuildError(
            f"{where}: temporary files cannot be written in {place} ({error.strerror}{needed}); "
            f"{remedy}"
        ) from error


def _ask_for_room(file: Path, size: int) -> None:
    """Raise OSError if the disk has no room for a file of `size` bytes."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    with open(file, "wb") as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, size)
        except OSError as error:
            if error.errno not in UNKNOWN:
                raise
    file.unlink()
