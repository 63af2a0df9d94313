"""A pool of GPU memory that calls reuse.

takes: a driver, numbers of bytes; gives: pieces of memory.

    take 700 bytes on stream 7 --> an idle piece of stream 7 of 704 bytes, or one below 1,408 bytes,
                                   or a new piece of 704 bytes
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import DeviceError

if TYPE_CHECKING:
    from .driver import Driver

NO_TIMING = 2
"""Flag of an event without a time stamp."""

MIN_BYTES = 512
"""Bytes of the smallest piece."""

CLASSES = 8
"""Number of piece sizes from one power of two to the next: rounding up adds at most an eighth."""

IDLE_TURNS = 1000
"""Every this many calls of `take`, pieces that were idle all that time are freed."""

IDLE_SHARE = 4
"""All idle pieces are freed when a new one would bring them above 1 / 4 of the GPU's memory."""


class Piece:
    """A piece of memory on a GPU.

    Attributes:
        pointer: its address.
        size: its bytes.
        stream: stream that it was allocated for, and on which it is reused.
        turn: the pool's count of calls of `take` when it was last returned.
    """

    __slots__ = ("pointer", "size", "stream", "turn")

    def __init__(self, pointer: int, size: int, stream: int) -> None:
        self.pointer, self.size, self.stream, self.turn = pointer, size, stream, 0


class MemoryPool:
    """Idle memory of a GPU.

    A piece belongs to a stream, and is reused only on that stream, after the work that used it
    last. There is no lock, because the garbage collector may return memory at any time, even on a
    thread that is taking some. Each step is one atomic call of a dict or deque.

    A piece that other streams have used too is set aside: they may still read it, and cannot be
    queried, as they may be destroyed. It is reused when its own stream has no other piece: that
    stream then waits for all work on the GPU. The wait fails while another thread captures a graph,
    as a new allocation would.
    """

    def __init__(self, driver: Driver) -> None:
        """Make an empty pool."""
        self._driver, self._most = driver, driver.memory // IDLE_SHARE
        self._idle: dict[tuple[int, int], deque[Piece]] = {}  # by stream and size, the oldest first
        self._used_elsewhere: dict[int, deque[Piece]] = {}  # by stream
        self._held = deque[Any]()  # events, each with an object kept until the GPU reaches it
        self._turns, self._turn = itertools.count(1), 0

    def take(self, size: int, stream: int) -> Piece:
        """Return a piece of at least `size` bytes.

        Raises:
            DeviceError: the GPU has not enough memory left.
        """
        self._turn = turn = next(self._turns)
        if not turn % IDLE_TURNS:
            self.trim(turn - IDLE_TURNS)
        size = round_up(size)
        try:
            return self._idle[stream, size].pop()
        except (KeyError, IndexError):
            found = self._find_larger(size, stream)
        if found is None and self._used_elsewhere.get(stream):
            self._settle(stream)
            found = self._find_larger(size, stream)
        return found or self._allocate(size, stream)

    def give(self, piece: Piece, is_used_elsewhere: bool = False) -> None:
        """Put a piece back into the pool; only later work on its stream may use it.

        Args:
            piece: a piece from `take`.
            is_used_elsewhere: whether work on other streams may still use it.
        """
        piece.turn = self._turn
        if is_used_elsewhere:
            self._used_elsewhere.setdefault(piece.stream, deque()).append(piece)
            return
        key = piece.stream, piece.size
        try:
            self._idle[key].append(piece)
        except KeyError:
            self._idle.setdefault(key, deque()).append(piece)

    def hold(self, stream: int, keeps: Any) -> None:
        """Keep an object alive until the GPU has done the current work on a stream."""
        self._held.append((self._driver.mark(stream, NO_TIMING), keeps))

    def let_go(self) -> None:
        """Release the objects that `hold` kept, oldest first, up to the first still in use."""
        if not self._held:
            return
        with self._driver.relaxed(), suppress(IndexError):  # another thread may be faster
            while True:
                event, keeps = self._held.popleft()
                if not self._driver.is_done(event):
                    return self._held.appendleft((event, keeps))
                self._driver.destroy(event)

    def trim(self, turn: int | None = None) -> None:
        """Free all pieces in the pool; given a turn, only those returned at that turn or before."""
        for pieces in (*self._idle.values(), *self._used_elsewhere.values()):
            with suppress(IndexError):
                while turn is None or pieces[0].turn <= turn:
                    self._driver.free(pieces.popleft().pointer)

    def count_idle_bytes(self) -> int:
        """Return the bytes of all idle pieces, except those that other streams have used."""
        return sum(size * len(pieces) for (_, size), pieces in tuple(self._idle.items()))

    def _settle(self, stream: int) -> None:
        """Make a stream wait for all work on the GPU, so that its pieces set aside become idle."""
        pieces = self._used_elsewhere[stream]
        found = [pieces.popleft() for _ in range(len(pieces))]
        is_settled = False
        try:
            self._driver.wait_for_all(stream)
            is_settled = True
        except DeviceError:  # perhaps a graph is being captured: try again later
            pass
        for piece in found:
            self.give(piece, not is_settled)

    def _find_larger(self, size: int, stream: int) -> Piece | None:
        """Take a stream's smallest idle piece of this size or more, but below twice the size.

        The result is None if there is none.
        """
        fitting = [
            key for key in tuple(self._idle) if key[0] == stream and size <= key[1] < 2 * size
        ]
        for key in sorted(fitting):
            with suppress(IndexError):
                return self._idle[key].pop()
        return None

    def _allocate(self, size: int, stream: int) -> Piece:
        if self.count_idle_bytes() + size > self._most:
            self.trim()
        try:
            pointer = self._driver.allocate(size)
        except DeviceError:  # perhaps idle pieces take all memory
            self.trim()
            pointer = self._driver.allocate(size)
        return Piece(pointer, size, stream)


@functools.lru_cache
def round_up(size: int) -> int:
    """Round a number of bytes up to the next size that pieces have, see `CLASSES`."""
    if size <= MIN_BYTES:
        return MIN_BYTES
    step = (1 << ((size - 1).bit_length() - 1)) // CLASSES
    return -(-size // step) * step
