"""Measure on another machine, through TVM's RPC.

takes: an address, or a port to serve; gives: `Remote`, a machine for `tuning.tune`.

The search runs here; a child there builds, compares and times its candidates, so schedules may
crash or hang there as they may here. Both machines need the same version of this package. What
travels are pickles: anyone who reaches the port can run any code there, as the user who serves.
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import rpc

from ...errors import InputError
from ...target import Target, cpu_name, parse_target
from .child import Child

CALL = "tvm_forest.remote.call"
PATIENCE = 60.0
"""Seconds in which a server must answer what takes it no time."""

WHERE = "tune: argument 'remote'"


def serve(host: str = "127.0.0.1", port: int = 9190) -> rpc.Server:
    """Start a process that measures for others, until `terminate` of what is returned.

    Args:
        host: address to listen on, which decides who can run code here: the default is reached
            from this machine only, "0.0.0.0" listens on all addresses of this machine.
        port: to listen on.

    Raises:
        InputError: the port is in use, or the host is no address of this machine.
    """
    try:
        with socket.socket() as probe:  # a server that fails leaves a process behind
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        raise InputError(
            f"serve: argument 'port': {port} of {host!r} cannot be listened on ({error}); give "
            "another, or as 'host' an address of this machine"
        ) from None
    return rpc.Server(host, port, port + 1, silent=True, server_init_callback=answer_calls)


def answer_calls() -> None:
    """Let the server of this process run functions for a `Remote`, and children for it."""
    children: dict[int, Child] = {}

    def run(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
        if function is Child:
            children[len(children)] = Child(*arguments[:-1], megabytes=arguments[-1])
            return len(children) - 1
        if function in (Child.prepare, Child.ready):
            number, *asked = arguments
            return function(children[number], *asked)
        if function is Child.close:
            return children.pop(arguments[0]).close()
        if function is Child.call:
            number, *asked = arguments
            return children[number].call(*asked, seconds=seconds)
        return function(*arguments)

    def call(question: bytes) -> bytes:
        try:
            return pickle.dumps(run(*pickle.loads(question)))
        except Exception as error:  # the client raises it again
            return pickle.dumps(error)

    tvm_ffi.register_global_func(CALL, call, override=True)


class Remote:
    """A machine that runs `serve`, for one client at a time: others wait until this is closed.

    Attributes:
        cpu: its processor.
    """

    def __init__(self, address: str) -> None:
        """Connect to "host:port".

        Raises:
            InputError: no address, nobody answers, or the package there is of another version.
        """
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal():
            raise InputError(f"{WHERE}: {address!r} is no address; give one like '10.0.0.7:9190'")
        try:
            self._call: Any = rpc.connect(host, int(port)).get_function(CALL)
            there, self.cpu = self.ask(about, seconds=PATIENCE)
        except (RuntimeError, AttributeError, OSError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise InputError(
                f"{WHERE}: no server answers at {address!r} ({reason}); run `tvm-forest serve` on "
                "that machine"
            ) from None
        if there != about()[0]:
            self._call = None
            raise InputError(
                f"{WHERE}: {address!r} runs tvm_forest {there}, this is {about()[0]}; install the "
                "same version on both"
            )

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._call = None

    def target(self, wanted: str | dict[str, Any] | Target) -> Target:
        """Return what is known of that machine."""
        found: Target = self.ask(parse_target, wanted, seconds=PATIENCE)
        return found

    def child(self, *ahead: str, megabytes: float) -> RemoteChild:
        """Return a child there; arguments as those of `Child`."""
        return RemoteChild(self, self.ask(Child, *ahead, megabytes, seconds=PATIENCE))

    def ask(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Return the result of a function of a module, run there."""
        answer = pickle.loads(bytes(self._call(pickle.dumps((function, arguments, seconds)))))
        if isinstance(answer, Exception):
            raise answer
        return answer


class RemoteChild:
    """A `Child` of a server."""

    def __init__(self, remote: Remote, number: int) -> None:
        self._remote, self._number = remote, number

    def __enter__(self) -> RemoteChild:
        return self

    def __exit__(self, *_: object) -> None:
        self._remote.ask(Child.close, self._number, seconds=PATIENCE)

    def prepare(self, function: Callable[..., None], *arguments: Any) -> None:
        """Say what the child does before its next call."""
        self._remote.ask(Child.prepare, self._number, function, *arguments, seconds=PATIENCE)

    def ready(self) -> None:
        """Wait until the child is prepared, see `Child.ready`."""
        self._remote.ask(Child.ready, self._number, seconds=PATIENCE)

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Return the result of a function, or a `Failure`, see `Child.call`."""
        return self._remote.ask(Child.call, self._number, function, *arguments, seconds=seconds)


def about() -> tuple[str, str]:
    """Return the version of this package and the processor."""
    return str(sys.modules[__name__.partition(".")[0]].__version__), cpu_name()
