"""The ASGI application: checks tokens and limits, answers requests, and counts the answers.

takes: predictors by name, Settings; gives: an application for uvicorn or for tests.

    request --> Application: token, /infer: limits, protocol, Batcher
                     |
                     +-----> FastAPI: all other requests

Requests for predictions bypass FastAPI, whose routing takes longer than most predictions.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

import orjson

from ..errors import ForestError
from .batching import Batcher, Results
from .coding import CODINGS, choose_coding, pack, unpack
from .metrics import Metrics
from .models import Model, Models
from .protocol import Request, count, read_request, write_answer
from .refusals import Refused
from .repository import Named, Repository
from .routes import make_routes
from .settings import MEGABYTE, Settings

LOG = logging.getLogger(__name__)

ACCESS = logging.getLogger("tvm_forest.access")
"""The access log, a line for each request."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Hold = Callable[[int], None]
P = ParamSpec("P")
T = TypeVar("T")

JSON_SIZE = b"inference-header-content-length"
"""Header with the length of the JSON part of a body, if binary tensors follow it."""

JSON, BINARY = b"application/json", b"application/octet-stream"
SHORT_BYTES = 1 << 16
"""Bytes below which the event loop itself reads or writes: a thread would take about as long."""

PACKED_BYTES = 1 << 10
"""Bytes of an answer from which it is compressed, if the client accepts that."""

MAX_LOGGED = 200
"""Characters of a path that are written to the access log."""

GONE = 499
"""Status that is counted and logged if a client disconnects before its answer; never sent."""

FAULT = "a fault of the server; see its log"
"""Text that a client gets with status 500."""

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
_OPEN = ("/v2/health/live", "/v2/health/ready")  # without a token: for probes
_EXTRA: dict[int, Headers] = {
    401: [(b"www-authenticate", b"Bearer")],
    405: [(b"allow", b"POST")],
    503: [(b"retry-after", b"1")],
}
"""Extra headers of refusals, by status."""


class Application:
    """The ASGI application, which uvicorn calls with each request.

    Attributes:
        models: the models that are served.
        settings: limits and permissions.
        repository: loads models anew from their files.
    """

    def __init__(self, named: list[Named], settings: Settings) -> None:
        self.models = models = Models((name, version, x) for name, version, x, _ in named)
        self.settings = settings
        self._executor = ThreadPoolExecutor(thread_name_prefix="tvm-forest")
        self._metrics = Metrics(lambda: sum(map(len, self._batchers.values())), models)
        self._batchers = {model: self._make_batcher(model) for model in models}
        self.repository = Repository(self, models, named)
        self._routes = make_routes(models, self._metrics, self.repository, settings.allow_load)
        self._in_flight = self._held = 0  # requests, and bytes that they hold

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request; an error of any kind becomes a status and a text."""
        if scope["type"] != "http":
            return
        if not self.settings.access_log:
            return await self._handle(scope, receive, send)
        begin, statuses = time.perf_counter(), [GONE]
        try:
            await self._handle(scope, receive, _noting(send, statuses.append))
        finally:
            client, *_ = scope.get("client") or ("-",)
            self.log_access(client, scope["method"], scope["path"], statuses[-1], begin)

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        headers, path = dict(scope["headers"]), scope["path"]
        asks = _INFER.fullmatch(path)
        try:
            if path not in _OPEN:
                self.check_token(headers.get(b"authorization", b""))
            if asks is not None and scope["method"] != "POST":
                raise Refused(f"method {scope['method']:.20}: use POST to {path:.200}", 405)
            model = None if asks is None else self.models.find(*asks.groups())
        except Refused as error:
            self.count_answer(error.status)
            return await _send_refusal(send, error)
        if model is None:
            return await self._routes(scope, receive, _noting(send, self.count_answer))
        with self.holding() as hold:
            read = partial(self._read, model, headers, receive, hold)
            try:
                parts, json_size = await self.infer(model, hold, read, write_answer)
            except Refused as error:
                return await _send_refusal(send, error)
            extra = [] if json_size is None else [(JSON_SIZE, b"%d" % json_size)]
            size, accepted = count(parts), headers.get(b"accept-encoding", b"")
            if size >= PACKED_BYTES and (coding := choose_coding(accepted)) is not None:
                parts = await self.work(size, pack, parts, coding)
                extra += [(b"content-encoding", coding), (b"vary", b"accept-encoding")]
            await send_bytes(send, 200, JSON if json_size is None else BINARY, parts, extra)

    def _make_batcher(self, model: Model) -> Batcher:
        settings, observe = self.settings, self._metrics.observe_batch(model.name, model.version)
        delay_s = settings.max_delay_ms / 1000
        return Batcher(model, self._executor, settings.max_batch, delay_s, observe)

    def put(self, model: Model) -> None:
        """Serve a model instead of the one with its name and version, if there is one.

        The old one still answers the requests that it has.
        """
        before = self.models.put(model)
        self._batchers[model] = self._make_batcher(model)
        if before is not None:
            del self._batchers[before]

    def remove(self, name: str) -> None:
        """Stop serving all versions of a model; requests that have arrived are still answered."""
        for model in self.models.remove(name):
            del self._batchers[model]

    def check_token(self, authorization: bytes) -> None:
        """Refuse requests without the token, if the server has one.

        The comparison takes constant time, so its duration reveals only the token's length.
        """
        scheme, _, given = authorization.partition(b" ")
        token = self.settings.token
        if token is not None and not (
            scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.encode())
        ):
            text = "header 'Authorization': expected 'Bearer' and the token of this server"
            raise Refused(text, 401)

    def count_answer(self, status: int) -> None:
        """Count an answer to a request that was not for a model's prediction, or was incomplete."""
        self._metrics.count_answer("", "", status, None)

    def log_access(self, client: str, method: str, path: str, status: Any, begin: float) -> None:
        """Write a line to the access log if it is on; the path is escaped and shortened.

        `begin` is when the request came, by `time.perf_counter`.
        """
        if self.settings.access_log:
            milliseconds = 1000 * (time.perf_counter() - begin)
            path = quote(path[:MAX_LOGGED], safe="/:")
            ACCESS.info("%s %.20s %s %s %.2f ms", client, method, path, status, milliseconds)

    async def infer(
        self,
        model: Model,
        hold: Hold,
        read: Callable[[], Awaitable[Request]],
        write: Callable[[Model, Request, Results], T],
    ) -> T:
        """Return the answer to a request, and count it.

        Args:
            model: the requested model.
            hold: see `holding`.
            read: reads the request.
            write: writes the answer, given the model, the request and the results.

        Raises:
            Refused: the request is refused; docs/serving.md lists the statuses.
        """
        begin, status = time.perf_counter(), GONE
        batcher = self._batchers[model]  # as `put` may replace the model while the body is read
        self._in_flight += 1
        try:
            if self._in_flight > self.settings.max_queue:
                text = f"{self.settings.max_queue} requests wait already; ask again later"
                raise Refused(text, 503)
            request = await read()
            most = self._check_answer(model, request)
            hold(request.rows.nbytes + most)
            names = [output.name for output in request.outputs]
            results = await batcher.predict(request.rows, names)
            answer = await self.work(most, write, model, request, results)
            status = 200
            return answer
        except ForestError as error:
            refused = error if isinstance(error, Refused) else Refused(str(error))
            status = refused.status
            raise refused from None
        except Exception:
            LOG.exception("a request to model %r failed", model.name)
            status = 500
            raise Refused(FAULT, status) from None
        finally:
            self._in_flight -= 1
            seconds = time.perf_counter() - begin if status == 200 else None
            self._metrics.count_answer(model.name, model.version, status, seconds)

    @contextmanager
    def holding(self) -> Iterator[Hold]:
        """Yield a function that adds to the bytes that a request holds until the block ends.

        The function refuses the request if it, or all requests together, hold too many bytes.
        """
        held, most = 0, f"{self.settings.max_queue_mb:g} megabytes"

        def hold(size: int) -> None:
            nonlocal held
            self._held, held = self._held + size, held + size
            if held > self.settings.max_held:
                raise Refused(f"the request takes more than {most} by itself; send fewer rows", 413)
            if self._held > self.settings.max_held:
                raise Refused(f"{most} of requests wait already; ask again later", 503)

        try:
            yield hold
        finally:
            self._held -= held

    async def _read(
        self, model: Model, headers: dict[bytes, bytes], receive: Receive, hold: Hold
    ) -> Request:
        """Receive and parse the body of an HTTP request.

        Raises:
            Refused: the body is too long or coded in an unknown way, the client has gone, or see
                `protocol.read_request`.
        """
        coding = headers.get(b"content-encoding", b"identity").lower()
        if coding != b"identity" and coding not in CODINGS:
            have = b", ".join(CODINGS).decode()
            raise Refused(f"header 'Content-Encoding': {coding!r:.80} (have: {have})", 415)
        json_size = headers.get(JSON_SIZE)
        if json_size is not None and not re.fullmatch(rb"\d{1,18}", json_size):
            raise Refused(
                f"header 'Inference-Header-Content-Length': {json_size!r:.80} is no number"
            )
        length = headers.get(b"content-length", b"")
        self._check_body(int(length) if length.isdigit() else 0)
        body = await self._receive(receive, hold)
        if coding != b"identity":
            body = await self.work(SHORT_BYTES, unpack, body, coding, self.settings.max_body)
            self._check_body(len(body))
            hold(len(body))
        size = None if json_size is None else int(json_size)
        return await self.work(len(body), read_request, body, size, model)

    async def _receive(self, receive: Receive, hold: Hold) -> bytes:
        """Return the body of a request.

        Raises:
            Refused: the body is too long, or the client has gone.
        """
        parts, size, has_more = [], 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused("the client has gone", GONE)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._check_body(size)
            hold(len(parts[-1]))
            has_more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def work(
        self, size: int, function: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Call a function that works on `size` bytes; on a thread if they are many."""
        call = partial(function, *arguments, **options)
        if size < SHORT_BYTES:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _check_body(self, size: int) -> None:
        if size > self.settings.max_body:
            raise Refused(
                f"the body has more than {self.settings.max_body_mb:g} megabytes; send fewer rows, "
                "or bytes in place of JSON",
                413,
            )

    def _check_answer(self, model: Model, request: Request) -> int:
        """Return the largest possible size of the answer in bytes; refuse it if too large."""
        rows = len(request.rows)
        most = sum(model.count_bytes(name, rows, binary) for name, binary in request.outputs)
        if most > self.settings.max_answer:
            raise Refused(
                f"the answer could have {most / MEGABYTE:,.1f} megabytes, more than "
                f"{self.settings.max_answer_mb:g}; send fewer rows, or ask for bytes in place of "
                "JSON",
                413,
            )
        return most


def _noting(send: Send, note: Callable[[int], None]) -> Send:
    """Return a `send` function that also calls `note` with the status of the answer."""

    async def send_noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            note(message["status"])
        await send(message)

    return send_noted


async def _send_refusal(send: Send, refused: Refused) -> None:
    if refused.status != GONE:
        body = orjson.dumps({"error": str(refused)})
        await send_bytes(send, refused.status, JSON, [body], _EXTRA.get(refused.status))


async def send_bytes(
    send: Send, status: int, kind: bytes, parts: list[bytes], extra: Headers | None = None
) -> None:
    """Send an answer; a long one is sent in parts, as fast as the client reads them.

    Args:
        send: the function of ASGI.
        status: HTTP status.
        kind: value of the header Content-Type.
        parts: the body in consecutive parts.
        extra: further headers.
    """
    size = count(parts)
    if size < SHORT_BYTES:
        parts = [b"".join(parts)]
    headers = [(b"content-type", kind), (b"content-length", b"%d" % size), *(extra or ())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1]})
