"""HTTP connections that survive slow clients and offers to switch to another protocol.

takes: bytes of a client; gives: requests for the application, or a refusal.

uvicorn waits for ever for headers that do not end, and for a client that does not read its answer.
It drops requests with a body that offer to upgrade to HTTP/2, as those of Java's client do.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .app import Application

MAX_HEAD = 1 << 16
"""Most bytes of a request's head, which is the request line and headers (431)."""

_OFFERS = (b"upgrade", b"http2-settings")
"""Headers with which a client offers to switch to another protocol."""


class Connection(HttpToolsProtocol):
    """A connection that ends if its client keeps it waiting."""

    timeout_s: float
    """See Settings; set by `make_connection`."""

    application: Application
    """The application, for its counters and access log; set by `make_connection`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reading: asyncio.TimerHandle | None = None  # while a request comes
        self._writing: asyncio.TimerHandle | None = None  # while an answer is not taken
        self._is_begun = self._has_head = False  # of the next request
        self._head_size = 0

    # -- callbacks of asyncio and of the parser -------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a client; refuse a malformed request, or a head that is too long."""
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            return self._answer(400, "this is no request of HTTP/1.1")
        if self._is_begun and not self._has_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                return self._answer(431, f"the head has more than {MAX_HEAD} bytes")
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self._reading is None and self.timeout_keep_alive_task is None:
            self._wait_for_request()

    def _parse(self, data: bytes) -> None:
        """Parse bytes; if the client offers another protocol, parse again without the offer."""
        while True:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                if not self._offers_protocol():  # CONNECT, which is answered
                    return
                data = self._write_head() + data[stop.args[0] :]
                self.parser = httptools.HttpRequestParser(self)

    def _offers_protocol(self) -> bool:
        """Return whether the request has an offer, so that the parser would ignore its body."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _write_head(self) -> bytes:
        """Return the head of the parsed request, without the headers of the offer."""
        version = self.parser.get_http_version().encode()
        lines = [b" ".join([self.parser.get_method(), self.url, b"HTTP/" + version])]
        for name, value in self.headers:
            if name == b"connection":
                words = (word.strip() for word in value.split(b","))
                value = b", ".join(word for word in words if word.lower() not in _OFFERS)
            if name not in _OFFERS:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Start the timeout for the rest of a request."""
        super().on_message_begin()
        self._is_begun, self._has_head, self._head_size = True, False, 0
        self._wait_for_request()

    def on_headers_complete(self) -> None:
        """Record that the head is complete."""
        if not self._offers_protocol():
            super().on_headers_complete()
            self._has_head = True

    def on_message_complete(self) -> None:
        """Stop the timeout of the request."""
        if not self._offers_protocol():
            super().on_message_complete()
            self._is_begun = self._has_head = False
            self._stop_reading()

    def on_response_complete(self) -> None:
        """Stop the timeout of the answer; start a new one if some of it is still unsent."""
        self._stop_writing()
        super().on_response_complete()
        if self.flow.write_paused:
            self._wait_for_client()

    def pause_writing(self) -> None:
        """Start the timeout for the client to read its answer."""
        super().pause_writing()
        self._wait_for_client()

    def resume_writing(self) -> None:
        """Stop the timeout if the answer is complete."""
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self._stop_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        self._stop_reading()
        self._stop_writing()
        super().connection_lost(exc)

    # -- refusals -------------------------------------------------------------------------------

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _wait_for_client(self) -> None:
        if self._writing is None:
            self._writing = self.loop.call_later(self.timeout_s, self.transport.abort)

    def _wait_for_request(self) -> None:
        self._stop_reading()
        self._reading = self.loop.call_later(self.timeout_s, self._give_up)

    def _give_up(self) -> None:
        if not self._is_begun:
            return self.transport.close()
        self._answer(408, f"the request has not come within {self.timeout_s:g} seconds")

    def _answer(self, status: int, text: str) -> None:
        """Send an error, unless an answer has begun, and close the connection."""
        cycle = self.cycle
        is_in_request = cycle is not None and not cycle.response_complete
        if self.transport.is_closing():
            return
        if not (is_in_request and cycle.response_started) and not (
            self._has_head and not is_in_request
        ):
            body = orjson.dumps({"error": text})
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json"
                f"\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.application.count_answer(status)
            client, *_ = self.client or ("-",)
            self.application.log_access(client, "-", "-", status, time.perf_counter())
        if is_in_request:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()


def make_connection(application: Application, timeout_s: float) -> type[Connection]:
    """Return a subclass of `Connection` for an application, as uvicorn makes its instances."""
    return type("Connection", (Connection,), {"application": application, "timeout_s": timeout_s})
