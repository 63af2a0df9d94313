"""A server of HTTP and gRPC in a thread of the test, and clients of Triton."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tritonclient.grpc
import uvicorn

from tvm_forest.serving import service

PATIENCE_S = 60


@contextmanager
def serving(application: Any) -> Iterator[tuple[int, int]]:
    """Serve an application, and yield its ports of HTTP and gRPC."""
    config = uvicorn.Config(application, port=0, ws="none", lifespan="off", log_level="error")
    http, ports, started = uvicorn.Server(config), list[int](), threading.Event()

    async def run() -> None:
        end, port = await service.open_server(application, "127.0.0.1", 0, None)
        serving = asyncio.create_task(http.serve())
        while not http.started:
            await asyncio.sleep(0.01)
        ports.extend([http.servers[0].sockets[0].getsockname()[1], port])
        started.set()
        await serving
        await end()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield ports[0], ports[1]
    finally:
        http.should_exit = True
        thread.join(PATIENCE_S)


@contextmanager
def client_of(port: int) -> Iterator[Any]:
    """Yield a client of gRPC."""
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        yield client


def refusal(call: Any, *arguments: Any, **options: Any) -> tuple[str, str]:
    """Return the status and the text by which a call is refused."""
    try:
        call(*arguments, **options)
    except tritonclient.grpc.InferenceServerException as error:
        return str(error.status()).removeprefix("StatusCode."), error.message()
    raise AssertionError("it is answered")
