"""Reloads the models of a server from their files while it answers.

takes: Models, files that the operator has named; gives: Models from the files' present content.

    POST .../load --+
    SIGHUP ---------+--> one thread reads, compiles and times --> event loop: the new Model serves
    a newer file ---+

Requests that have arrived are answered by the Model that they were parsed for. If a file cannot be
read, the present Model stays.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ForestError
from .models import Model, Models
from .refusals import Refused

if TYPE_CHECKING:
    from .app import Application

LOG = logging.getLogger(__name__)

LOOK_S = 0.1
"""Seconds between two checks whether a model's code is compiled."""

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and modification time of each file; a change alters at least one of them."""


class Source:
    """The file or folder of a model.

    Attributes:
        path: its path.
        stamp: inode, size and modification time of each of its files when it was last read.
    """

    def __init__(self, path: str, open_: Callable[..., Any]) -> None:
        """Store a path; `open_(path, **options)` returns the predictor of its model."""
        self.path, self._open = path, open_
        self.stamp, self._seen = Stamp(), Stamp()

    def open(self, **options: Any) -> Any:
        """Return a predictor made from the file's present content; `options` go to `open_`.

        Raises:
            ForestError: it cannot be read.
        """
        self.stamp = self._seen = self._look()
        return self._open(self.path, **options)

    def has_changed(self) -> bool:
        """Return whether the file differs from what was read last, and is no longer being written.

        It counts as complete if it is the same as at the call before.
        """
        before, self._seen = self._seen, self._look()
        return self._seen == before != self.stamp and self._seen != ()

    def _look(self) -> Stamp:
        try:
            return tuple(
                (about.st_ino, about.st_size, about.st_mtime_ns) for about in _walk(Path(self.path))
            )
        except OSError:  # for example while it is replaced
            return ()


def _walk(path: Path) -> Iterator[os.stat_result]:
    yield path.stat()
    for each in sorted(path.iterdir()) if path.is_dir() else ():
        yield from _walk(each)


class Named(NamedTuple):
    """A predictor with the name and version under which it is served, and maybe its file."""

    name: str
    version: str
    predictor: Any
    source: Source | None = None


class Repository:
    """Loads and unloads the models of a server that have files."""

    def __init__(self, application: Application, models: Models, named: list[Named]) -> None:
        self._application, self._models = application, models
        self._sources: dict[str, dict[str, Source]] = {}
        for name, version, _, source in named:
            if source is not None:
                self._sources.setdefault(name, {})[version] = source
        self._executor = ThreadPoolExecutor(1, "tvm-forest-load")  # one model at a time
        self._tasks = set[asyncio.Task[None]]()

    def check_asked(self, parameters: dict[str, Any], *known: str) -> None:
        """Refuse a client's request to load or unload a model, unless the server allows that.

        Args:
            parameters: parameters of the request.
            known: names of parameters to ignore, such as "unload_dependents": models have no
                dependents. Requests with others are refused.

        Raises:
            Refused: the request is refused.
        """
        if not self._application.settings.allow_load:
            raise Refused(
                "this server loads no models for clients; start it with --allow-load", 403
            )
        others = [name for name in parameters if name not in known]
        if others:
            raise Refused(f"parameter {others[0]!r:.80} is not taken: a model is that of its file")

    def describe(self, only_ready: bool = False) -> list[dict[str, str]]:
        """Return name, version and state of all models, or only of those that are ready."""
        ready = [(model.name, model.version) for model in self._models]
        known = [(name, version) for name, own in self._sources.items() for version in own]
        return [
            {
                "name": name,
                "version": version,
                "state": "READY" if (name, version) in ready else "UNAVAILABLE",
                "reason": "" if (name, version) in ready else "unloaded",
            }
            for name, version in dict.fromkeys([*known, *ready])
            if (name, version) in ready or not only_ready
        ]

    async def load(self, name: str) -> None:
        """Read all versions of a model from their files again, and serve these instead.

        Raises:
            Refused: the model has no file (404), or a file cannot be read.
        """
        sources = self._find(name)
        loop = asyncio.get_running_loop()
        try:
            models = await loop.run_in_executor(self._executor, _read, name, sources)
        except ForestError as error:
            raise Refused(f"model {name!r:.80} stays as it is: {error}") from error
        for model in models:
            self._application.put(model)
        LOG.info("model %r: read anew", name)

    def unload(self, name: str) -> None:
        """Stop serving a model; requests that have arrived are answered.

        Raises:
            Refused: the model has no file (404), so it could not be loaded again.
        """
        self._find(name)
        self._application.remove(name)
        LOG.info("model %r: unloaded", name)

    def _find(self, name: str) -> dict[str, Source]:
        if name not in self._sources:
            known = ", ".join(self._sources) or "none"
            raise Refused(f"model {name!r:.80} has no file here (have: {known})", 404)
        return self._sources[name]

    # -- reloading without a request --------------------------------------------------------------

    def begin(self, watch_s: float) -> None:
        """Reload models at SIGHUP, and if `watch_s` is not 0, when their files change.

        Models that still use the reference walk are timed again when their code is compiled.
        """
        loop = asyncio.get_running_loop()
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._load_all()))
        if watch_s:
            self._start(self._watch(watch_s))
        for model in self._models:
            if not model.predictor.ready:
                self._start(self._await_code(model))

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)

    async def _await_code(self, model: Model) -> None:
        try:
            while not model.predictor.wait(timeout=0):
                await asyncio.sleep(LOOK_S)
        except ForestError:  # it is logged already
            return
        known = model.name, model.version, model.predictor
        timed = await asyncio.get_running_loop().run_in_executor(self._executor, Model, *known)
        if model in list(self._models):
            self._application.put(timed)

    async def _load_all(self) -> None:
        for name in self._sources:
            await self._load_if_served(name)

    async def _load_if_served(self, name: str) -> None:
        if name not in self._models:
            return
        try:
            await self.load(name)
        except Refused as error:
            LOG.error("%s", error)

    async def _watch(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(seconds)
            for name, sources in self._sources.items():
                looks = [x.has_changed for x in sources.values()]
                found = [await loop.run_in_executor(self._executor, look) for look in looks]
                if any(found):
                    await self._load_if_served(name)


def _read(name: str, sources: dict[str, Source]) -> list[Model]:
    """Read all versions of a model from their files, and prepare them to answer."""
    return [Model(name, version, source.open()) for version, source in sources.items()]
