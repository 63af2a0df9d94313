"""A server of predictions: the Open Inference Protocol, version 2, on FastAPI and uvicorn.

takes: predictors, requests of HTTP; gives: predictions, with the bits of `predict`.

    client --> connections --> app --> protocol --> batching --> Predictor
                                |         |
                             routes    tensors

This file imports what only a server needs when one is made; docs/serving.md says how to use it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .settings import Settings as Settings

if TYPE_CHECKING:
    from .models import Named

IDLE_S = 75
"""Seconds that a connection without a request stays open: longer than proxies keep theirs."""


def check_packages() -> None:
    """Raise InputError unless all packages of the extra are there."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import orjson  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"serve: {error.name} is missing; install it with: pip install 'tvm-forest[serve]'"
        ) from None


def make_application(named: Sequence[Named], settings: Settings | None = None) -> Any:
    """Return the application of ASGI that serves models.

    Args:
        named: the models.
        settings: limits; None for the usual ones.

    Raises:
        InputError: two models have one name and version, or a model cannot be served.
    """
    check_packages()
    from .app import Application
    from .models import Models

    return Application(Models(named), settings or Settings())


def open_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        InputError: the address is unknown or in use.
    """
    try:
        (family, *_, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(
            f"serve: arguments 'host' and 'port': cannot listen at {host}:{port} ({error})"
        ) from None


def run(
    application: Any,
    listening: socket.socket,
    certificate: tuple[str, str] | None = None,
    announce: Callable[[], None] | None = None,
) -> None:
    """Answer requests until the process is told to end; those that have come are answered.

    Args:
        application: see `make_application`.
        listening: see `open_port`.
        certificate: files of the certificate and of its key, for TLS; None for plain HTTP.
        announce: called once a signal ends the server in good order; None for nothing.

    Raises:
        InputError: the certificate cannot be read.
    """
    import uvicorn

    from .connections import make_connection

    chain, key = certificate or (None, None)
    config = uvicorn.Config(
        application,
        http=make_connection(application, application.settings.timeout_s),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=int(application.settings.timeout_s) + 1,
        ssl_certfile=chain,
        ssl_keyfile=key,
    )
    try:
        config.load()
    except OSError as error:  # errors of TLS are among them
        raise InputError(f"serve: argument 'certificate': {chain!r}, {key!r}: {error}") from None
    server = uvicorn.Server(config)
    for name in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again when it is done
        signal.signal(name, lambda *_: setattr(server, "should_exit", True))
    if announce is not None:
        announce()
    with contextlib.closing(listening):
        server.run([listening])
