"""Temporary folders with enough room for the output of compilers.

takes: what is about to happen, a number of bytes; gives: a folder, or an error that says which one
is full.

LLVM ends the process where it cannot write a file. So the room that it may need is asked for
before, and whoever writes to such a folder gets an error of ours where there is none.
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
"""Errno values for a lack of room: on the disk, for this user, in this process."""

UNKNOWN = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM}
"""Errno values of file systems that cannot reserve room, though they may have it."""


@contextlib.contextmanager
def make_folder(where: str, room: int = 0) -> Iterator[Path]:
    """Make a folder that is removed when the block ends.

    Args:
        where: what an error begins with.
        room: bytes that must fit into it.

    Raises:
        BuildError: they do not, or what the block writes does not; or there is no place for
            temporary files.
    """
    place, is_there = "any place for temporary files", False
    try:
        place = tempfile.gettempdir()
        # Windows does not remove a library that is loaded: it stays there
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
    """Raise OSError unless a file of some bytes can be written."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    with open(file, "wb") as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, size)
        except OSError as error:
            if error.errno not in UNKNOWN:
                raise
    file.unlink()
