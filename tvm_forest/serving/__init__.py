"""A server of predictions: the Open Inference Protocol, version 2, on FastAPI, uvicorn and grpcio.

takes: predictors, requests of HTTP and gRPC; gives: predictions, with the bits of `predict`.

    client --> connections --> app --> protocol --> batching --> Predictor
                                | |       |
            repository <-- routes |    tensors
                    |             |       |
    client --> service -----------+-- messages

The packages that only a server needs are imported when one is made. docs/serving.md is the manual.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..system.process.ending import ENDING
from .settings import Settings as Settings

if TYPE_CHECKING:
    from .repository import Named

LOG = logging.getLogger(__name__)

MAX_PORT = 65535

EXTRAS = {
    "serve": ("fastapi", "httptools", "orjson", "prometheus_client", "uvicorn"),
    "grpc": ("grpc", "google.protobuf"),
}
"""Packages that a server needs, for each of the extras `tvm-forest[...]` that install them."""

IDLE_S = 75
"""Seconds that a connection without a request stays open: longer than proxies keep theirs."""


def check_packages(with_grpc: bool = False) -> None:
    """Raise InputError unless the packages of `serve`, and `grpc` if needed, are installed."""
    for extra, packages in EXTRAS.items():
        for package in packages if extra == "serve" or with_grpc else ():
            try:
                import_module(package)
            except ImportError as error:
                raise InputError(
                    f"serve: {error.name} is missing; install it with: pip install "
                    f"'tvm-forest[{extra}]'"
                ) from None


def make_application(named: Sequence[Named], settings: Settings | None = None) -> Any:
    """Return the ASGI application that serves models.

    Args:
        named: the models.
        settings: limits; None for the defaults.

    Raises:
        InputError: two models have one name and version, or a model cannot be served.
    """
    check_packages()
    from .app import Application

    return Application(list(named), settings or Settings())


def check_port(port: int, name: str = "port") -> None:
    """Raise InputError unless a port is from 0 to 65535; 0 means any free port."""
    if type(port) is not int or not 0 <= port <= MAX_PORT:
        raise InputError(
            f"serve: argument '{name}': {port!r} is no port; give one from 1 to {MAX_PORT}, or 0 "
            "for any that is free"
        )


def open_port(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: a host name or an IP address.
        port: 0 to 65535; 0 for any free port.

    Raises:
        InputError: the address is unknown or in use, or the port is out of range.
    """
    check_port(port)
    try:
        (family, *_, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(
            f"serve: arguments 'host' and 'port': cannot listen at {host}:{port} ({error})"
        ) from None


def warn_of_strangers(address: str, has_token: bool, has_tls: bool) -> None:
    """Log warnings if other machines can reach a server that lacks a token or TLS.

    Args:
        address: IPv4 or IPv6 address at which the server listens; for loopback nothing is logged.
        has_token: whether requests need a token.
        has_tls: whether connections use TLS.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or found
    if mapped.is_loopback:
        return
    if not has_token:
        LOG.warning(
            "serve: argument 'host': other machines reach %s, and whoever does may ask; give "
            "--token-file, or listen at 127.0.0.1",
            address,
        )
    if not has_tls:
        LOG.warning(
            "serve: argument 'host': other machines reach %s, and what they send and get%s can be "
            "read on the way; give --tls, or listen at 127.0.0.1 behind a proxy that speaks TLS",
            address,
            ", the token too," if has_token else "",
        )


def run(
    application: Any,
    listening: socket.socket,
    certificate: tuple[str, str] | None = None,
    announce: Callable[[int | None], None] | None = None,
    grpc_port: int | None = None,
) -> None:
    """Answer requests until a signal ends the process; pending requests are still answered.

    Args:
        application: see `make_application`.
        listening: see `open_port`.
        certificate: files of the certificate and of its key, for TLS; None for plain HTTP.
        announce: called once the server is ready, with the port of gRPC or None; may be None.
        grpc_port: port of gRPC at the same address, 0 for any free one; None for HTTP only.

    Raises:
        InputError: the certificate cannot be read, or the gRPC port is in use.
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

    host, end_grpc = listening.getsockname()[0], None

    class Server(uvicorn.Server):
        async def startup(self, *args: Any, **kwargs: Any) -> None:
            nonlocal end_grpc
            port = None
            if grpc_port is not None:
                from .service import open_server

                end_grpc, port = await open_server(application, host, grpc_port, certificate)
            await super().startup(*args, **kwargs)
            application.repository.begin(application.settings.watch_s)
            if announce is not None:
                announce(port)

        async def shutdown(self, *args: Any, **kwargs: Any) -> None:
            ends = [super().shutdown(*args, **kwargs)]
            if end_grpc is not None:
                ends.append(end_grpc())
            await asyncio.gather(*ends)

    server = Server(config)
    for name in (*ENDING, signal.SIGINT):  # uvicorn raises them again when it is done
        signal.signal(name, lambda *_: setattr(server, "should_exit", True))
    has_token = application.settings.token is not None
    warn_of_strangers(host, has_token, certificate is not None)
    with contextlib.closing(listening):
        server.run([listening])
