"""Measures on another machine, through TVM's RPC.

takes: an address, or a port to serve; gives: `RemoteMachine`, where `tune` measures.

The search runs here. A child on the other machine builds, checks and times candidates, so schedules
may crash or hang there as here. Both machines need the same version of this package. Requests are
pickles: anyone who reaches the port can run any code on the serving machine, as the user who
serves.
"""

from __future__ import annotations

import functools
import itertools
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
"""Name of the server's function that runs a pickled function with its arguments."""

WHERE = "tune: argument 'remote'"


def serve(host: str = "127.0.0.1", port: int = 9190) -> rpc.Server:
    """Start a server process that measures for other machines, until its `terminate` is called.

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
    """Register the function by which this server answers a `RemoteMachine`."""

    def answer(question: bytes) -> bytes:
        try:
            function, arguments, keywords = pickle.loads(question)
            return pickle.dumps(function(*arguments, **keywords))
        except Exception as error:  # the client raises it again
            return pickle.dumps(error)

    tvm_ffi.register_global_func(CALL, answer, override=True)


_children: dict[int, Child] = {}  # of this process, which is a server
_numbers = itertools.count()


def start_child(*modules: str, megabytes: float) -> int:
    """Start a child of this process; return a number that identifies it."""
    number = next(_numbers)
    _children[number] = Child(*modules, megabytes=megabytes)
    return number


def ask_child(number: int, method: str, *arguments: Any, **keywords: Any) -> Any:
    """Call a method of a child; "close" also forgets its number."""
    child = _children.pop(number) if method == "close" else _children[number]
    return getattr(child, method)(*arguments, **keywords)


class RemoteMachine:
    """A machine that runs `serve`, for one client at a time: others wait until this is closed.

    Attributes:
        cpu: its processor.
    """

    def __init__(self, address: str) -> None:
        """Connect to "host:port".

        Raises:
            InputError: not an address, no answer, or another version of the package there.
        """
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise InputError(f"{WHERE}: {address!r} is no address; give one like '10.0.0.7:9190'")
        try:
            self._call: Any = rpc.connect(host, int(port)).get_function(CALL)
            there, self.cpu = self.ask(describe_here)
        except (RuntimeError, AttributeError, OSError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise InputError(
                f"{WHERE}: no server answers at {address!r} ({reason}); run `tvm-forest rpc` on "
                "that machine"
            ) from None
        if there != describe_here()[0]:
            self._call = None
            raise InputError(
                f"{WHERE}: {address!r} runs tvm_forest {there}, this is {describe_here()[0]}; "
                "install the same version on both"
            )

    def __enter__(self) -> RemoteMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self._call = None

    def target(self, wanted: str | dict[str, Any] | Target) -> Target:
        """Return the Target that `wanted` means on that machine."""
        target: Target = self.ask(parse_target, wanted)
        return target

    def child(self, *modules: str, megabytes: float) -> RemoteChild:
        """Start a child there; arguments as those of `Child`."""
        return RemoteChild(self, self.ask(start_child, *modules, megabytes=megabytes))

    def ask(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run a function of a module there; return its result, or raise its error."""
        answer = pickle.loads(bytes(self._call(pickle.dumps((function, arguments, keywords)))))
        if isinstance(answer, Exception):
            raise answer
        return answer


class RemoteChild:
    """A `Child` on a server, with the same methods."""

    def __init__(self, machine: RemoteMachine, number: int) -> None:
        self._ask = functools.partial(machine.ask, ask_child, number)
        self.prepare = functools.partial(self._ask, "prepare")
        self.ready = functools.partial(self._ask, "ready")
        self.call = functools.partial(self._ask, "call")

    def __enter__(self) -> RemoteChild:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("close")


def describe_here() -> tuple[str, str]:
    """Return this package's version, and the name of this machine's processor."""
    return str(sys.modules[__name__.partition(".")[0]].__version__), cpu_name()
