"""A thread that reads while others compute.

takes: an iterator; gives: its items, of which the next ones are read already.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

DEPTH = 1
"""Items that wait, beside the one that is being read."""

_WAIT_S = 0.1  # until a full queue is looked at again


@contextmanager
def read_ahead(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Yield an iterator over items that a thread reads; it ends with the block.

    What the iterator raises is raised where its item was awaited.
    """
    reader = _ReadAhead(items)
    thread = threading.Thread(target=reader.run, name="tvm-forest-reader", daemon=True)
    thread.start()
    try:
        yield reader.take()
    finally:
        reader.ended.set()
        thread.join(10 * _WAIT_S)  # a reader of a silent pipe does not hear of it


class _ReadAhead(Generic[T]):
    """What both threads share."""

    def __init__(self, items: Iterator[T]) -> None:
        self.ended = threading.Event()
        self._items = items
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(DEPTH)

    def run(self) -> None:
        """Put items into the queue until there are no more, or nobody wants them."""
        try:
            for item in self._items:
                self._put((item, None))
                if self.ended.is_set():
                    return
            self._put((None, StopIteration()))
        except BaseException as error:  # it is raised by `take`
            self._put((None, error))
        finally:
            getattr(self._items, "close", bool)()

    def take(self) -> Iterator[T]:
        """Yield what the thread has read."""
        while True:
            item, error = self._queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item

    def _put(self, entry: tuple[T | None, BaseException | None]) -> None:
        while not self.ended.is_set():
            try:
                return self._queue.put(entry, timeout=_WAIT_S)
            except queue.Full:
                continue
