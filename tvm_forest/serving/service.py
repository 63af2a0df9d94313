"""The gRPC service of the protocol; it shares models, batches, limits and metrics with HTTP.

takes: an Application, messages of clients; gives: messages, or an error status.

    client --> grpc.aio --> Service --> messages --> Application.infer

It runs on the event loop of the application. grpc passes messages as bytes, so that long ones can
be decoded and encoded on other threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import grpc

from ..errors import InputError
from .app import FAULT, GONE, Application, Hold
from .messages import CLASSES, read_message, read_request, to_values, write_answer
from .refusals import Refused
from .routes import describe_server

LOG = logging.getLogger(__name__)

NAME = "inference.GRPCInferenceService"

LAST_S = 0.5
"""Seconds for which a stopping server still waits for requests to arrive, and answers them."""

OPEN = ("ServerLive", "ServerReady")
"""Methods that need no token, for probes."""

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""The gRPC status for each HTTP status."""


class Service:
    """The handlers of gRPC requests."""

    def __init__(self, application: Application) -> None:
        self._application, self._repository = application, application.repository
        # Requests that are arriving: grpc passes them on only when they are complete.
        self._reading = set[asyncio.Future[Any]]()
        self._is_ending = False
        models, may_load = application.models, application.settings.allow_load

        def describe(asked: Any) -> dict[str, Any]:
            return models.find(asked.name, asked.version).describe(
                models.versions(asked.name), True
            )

        self._answers: dict[str, Callable[[Any], Any]] = {
            "ServerLive": lambda asked: {"live": True},
            "ServerReady": lambda asked: {"ready": True},
            "ServerMetadata": lambda asked: describe_server(may_load),
            "ModelReady": lambda asked: {"ready": bool(describe(asked))},
            "ModelMetadata": describe,
            "RepositoryIndex": lambda asked: {"models": self._repository.describe(asked.ready)},
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }

    def make_handler(self) -> Any:
        """Return the handler of all methods, for `grpc.aio.server`."""
        names = [*self._answers, "ModelInfer"]
        # As a stream, the request is awaited by our code, which can then set a timeout.
        methods = {x: grpc.stream_unary_rpc_method_handler(self._make_method(x)) for x in names}
        return grpc.method_handlers_generic_handler(NAME, methods)

    def _make_method(self, name: str) -> Any:
        application = self._application

        async def answer(_: Any, context: Any) -> bytes:
            begin, status, model = time.perf_counter(), GONE, None
            try:
                with application.holding() as hold:
                    body = await self._receive(name, context, hold)
                    asked = await application.work(len(body), read_message, f"{name}Request", body)
                    if name == "ModelInfer":
                        model = application.models.find(asked.model_name, asked.model_version)
                        read = partial(application.work, len(body), read_request, asked, model)
                        found = await application.infer(model, hold, read, write_answer)
                    else:
                        fields = self._answers[name](asked)
                        fields = await fields if asyncio.iscoroutine(fields) else fields
                        found = CLASSES[f"{name}Response"](**fields).SerializeToString()
                status = 200
                return found
            except Refused as refused:
                status = refused.status
                await context.abort(CODES[status], str(refused))
                raise
            except Exception:
                status = 500
                LOG.exception("a request by gRPC failed")
                await context.abort(CODES[status], FAULT)
                raise
            finally:
                if model is None:  # else `infer` has counted it
                    application.count_answer(status)
                application.log_access(context.peer(), "gRPC", f"/{NAME}/{name}", status, begin)

        return answer

    async def _receive(self, name: str, context: Any, hold: Hold) -> bytes:
        settings = self._application.settings
        if name not in OPEN:
            token = dict(context.invocation_metadata()).get("authorization", "")
            self._application.check_token(str(token).encode())
        if len(self._reading) >= settings.max_queue:
            raise Refused(f"{settings.max_queue} requests come already; ask again later", 503)
        read = asyncio.ensure_future(context.read())
        self._reading.add(read)
        try:
            body = await asyncio.wait_for(read, LAST_S if self._is_ending else settings.timeout_s)
        except asyncio.TimeoutError:
            text = f"the request has not come within {settings.timeout_s:g} seconds"
            raise Refused(text, 408) from None
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            raise Refused("the server ends; ask another one", 503) from None
        finally:
            self._reading.discard(read)
        if not isinstance(body, bytes):
            raise Refused("the client has sent no message")
        hold(len(body))
        return body

    async def stop(self, server: Any) -> None:
        """Answer the requests that arrive within `LAST_S`, then stop a server; refuse others."""
        self._is_ending = True
        ends = asyncio.ensure_future(server.stop(self._application.settings.timeout_s))
        await asyncio.wait([ends], timeout=LAST_S)
        for read in self._reading:
            read.cancel()
        await ends

    async def _load(self, asked: Any) -> dict[str, Any]:
        self._repository.check_asked(to_values(asked.parameters))
        await self._repository.load(asked.model_name)
        return {}

    def _unload(self, asked: Any) -> dict[str, Any]:
        self._repository.check_asked(to_values(asked.parameters), "unload_dependents")
        self._repository.unload(asked.model_name)
        return {}


async def open_server(
    application: Application, host: str, port: int, certificate: tuple[str, str] | None
) -> tuple[Callable[[], Coroutine[Any, Any, None]], int]:
    """Start a gRPC server; return the coroutine function that stops it, and its port.

    Args:
        application: the application to serve.
        host: the address to listen at.
        port: 0 for any free port.
        certificate: files of the certificate and of its key, for TLS; None for no TLS.

    Raises:
        InputError: the port is in use, or the certificate cannot be read.
    """
    options = [
        ("grpc.max_receive_message_length", application.settings.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # else two servers could share a port
    ]
    server = grpc.aio.server(options=options)
    service = Service(application)
    server.add_generic_rpc_handlers([service.make_handler()])
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if certificate is None:
            bound = server.add_insecure_port(place)
        else:
            chain, key = (open(path, "rb").read() for path in certificate)
            bound = server.add_secure_port(place, grpc.ssl_server_credentials([(key, chain)]))
    except (OSError, RuntimeError) as error:
        text = f"serve: argument 'grpc_port': cannot listen at {place} ({error})"
        raise InputError(text) from None
    await server.start()
    return partial(service.stop, server), bound
