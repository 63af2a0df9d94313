"""Joins requests that come at the same time into one call of the predictor.

takes: rows of many requests; gives: each request's predictions, with the bits of a separate call.

    requests --> waiting --> a batch: on the event loop if it is short, else on a thread
                                      |
             <-- each its part -------+     meanwhile others wait, for the next batch
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from ..errors import ForestError
from ..forest import Array
from .models import SUMS, Model

SHORT_S = 100e-6
"""Expected seconds below which a batch runs on the event loop: starting a thread takes as long."""

Results = dict[str, Array]
"""Outputs by name."""


class _Waiting(NamedTuple):
    """A request that waits for its predictions."""

    rows: Array
    outputs: Sequence[str]
    future: asyncio.Future[Results]


class Batcher:
    """Joins the requests of a model; one batch at a time is predicted."""

    def __init__(
        self,
        model: Model,
        executor: Executor,
        max_rows: int,
        max_delay_s: float,
        observe: Callable[[int, int], None],
    ) -> None:
        """Join requests within `max_delay_s` of the first, while they have up to `max_rows` rows.

        A request of more rows is a batch of its own. `observe` is called with the number of
        requests and of rows of each batch.
        """
        self._model, self._executor, self._observe = model, executor, observe
        self._max_rows, self._max_delay_s = max_rows, max_delay_s
        self._waiting: deque[_Waiting] = deque()
        self._n_rows = 0
        self._timer: asyncio.Handle | None = None
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def predict(self, rows: Array, outputs: Sequence[str]) -> Results:
        """Return the named outputs of rows, once the batch that they join is predicted.

        Raises:
            InputError: the model refuses a row.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(rows, outputs, loop.create_future())
        self._waiting.append(waiting)
        self._n_rows += len(rows)
        if not self._is_busy:
            self._plan(loop)
        return await waiting.future

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule the next batch: at once if it is full, else after the delay."""
        if self._n_rows >= self._max_rows and self._max_delay_s and self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_soon(self._begin)
        elif self._timer is None:  # without a delay, all that the loop has read already join
            wait = self._max_delay_s if self._n_rows < self._max_rows else 0
            self._timer = (
                loop.call_later(wait, self._begin) if wait else loop.call_soon(self._begin)
            )

    def _begin(self) -> None:
        """Predict the next batch."""
        self._timer = None
        batch, n_rows = self._take()
        self._observe(len(batch), n_rows)
        if self._model.expect_seconds(n_rows) < SHORT_S and _asks_for_sums(batch):
            return self._end(batch, _predict(self._model, batch))
        self._is_busy = True
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._executor, _predict, self._model, batch)
        call.add_done_callback(lambda done: self._end(batch, done.result()))

    def _take(self) -> tuple[list[_Waiting], int]:
        batch = [self._waiting.popleft()]
        n_rows = len(batch[0].rows)
        while self._waiting and n_rows + len(self._waiting[0].rows) <= self._max_rows:
            batch.append(self._waiting.popleft())
            n_rows += len(batch[-1].rows)
        self._n_rows -= n_rows
        return batch, n_rows

    def _end(self, batch: list[_Waiting], results: list[Results | Exception]) -> None:
        """Give each request of a batch its results or its error, and schedule the next batch."""
        for waiting, result in zip(batch, results, strict=True):
            if waiting.future.done():  # nobody waits any more
                continue
            if isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result(result)
        self._is_busy = False
        if self._waiting and self._timer is None:  # their delay is over
            self._timer = asyncio.get_running_loop().call_soon(self._begin)


def _asks_for_sums(batch: list[_Waiting]) -> bool:
    """Return whether all requests want only outputs in `SUMS`.

    Calls for other outputs were not timed, and may have to compile code first.
    """
    return all(name in SUMS for waiting in batch for name in waiting.outputs)


def _predict(model: Model, batch: list[_Waiting]) -> list[Results | Exception]:
    """Return for each request its outputs, or the error with which it fails.

    If the model refuses a batch, each request is predicted alone.
    """
    try:
        return list(_predict_together(model, batch))
    except ForestError as error:
        if len(batch) == 1:
            return [error]
        return [result for waiting in batch for result in _predict(model, [waiting])]
    except Exception as error:  # our fault: each request fails with 500, and the log has the cause
        return [error] * len(batch)


def _predict_together(model: Model, batch: list[_Waiting]) -> list[Results]:
    """Call the predictor once for each output, with the rows of all requests that want it."""
    results: list[Results] = [{} for _ in batch]
    for name in dict.fromkeys(name for waiting in batch for name in waiting.outputs):
        places = [i for i, waiting in enumerate(batch) if name in waiting.outputs]
        parts = [batch[i].rows for i in places]
        result = model.predict(name, parts[0] if len(parts) == 1 else np.concatenate(parts))
        begin = 0
        for i, part in zip(places, parts, strict=True):
            results[i][name] = result[begin : begin + len(part)]
            begin += len(part)
    return results
