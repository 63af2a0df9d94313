"""Measuring on another machine: here it is a server on this one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.cli import make_parser
from tvm_forest.errors import InputError, ModelFormatError
from tvm_forest.search.measuring import remote
from tvm_forest.search.measuring.child import Failure
from tvm_forest.search.records import read_records
from tvm_forest.target import Target, cpu_name

pytestmark = pytest.mark.slow

FOREST = drawn_forest(6, 3, seed=5)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = free_server()
    yield f"127.0.0.1:{server.port}"
    server.terminate()


def free_server() -> Any:
    """Start a server on the first port that is free, of those that this process tries."""
    for port in range(20_000 + os.getpid() % 20_000, 65_000, 97):
        try:
            return remote.serve(port=port)
        except InputError:
            continue
    raise AssertionError("no port is free")


def test_a_search_measures_there_and_records_say_where(address: str, tmp_path: Path) -> None:
    path = tmp_path / "tune.jsonl"
    tuned = tvm_forest.tune(
        FOREST, batch_size=8, trials=1, records=path, progress=False, remote=address
    )
    assert all(record.seconds is not None for record in tuned.records)
    (machine,) = {record.context["cpu"] for record in read_records(path)}
    assert machine == f"{cpu_name()}, {Target().cores} cores"
    again = tvm_forest.build(FOREST, records=path)
    assert set(again.schedules.values()) == set(tuned.schedules.values())


def test_what_crashes_or_hangs_there_is_a_failure_and_the_next_call_works(address: str) -> None:
    with remote.RemoteMachine(address) as there, there.child(megabytes=4096.0) as child:
        assert child.call(os.getpid, seconds=20) != os.getpid()
        assert child.call(os.abort, seconds=20) == Failure("crashed: SIGABRT")
        assert child.call(signal.pause, seconds=0.5) == Failure("over 0.5 s", timed_out=True)
        assert child.call(len, "abc", seconds=20) == 3


def test_errors_there_are_raised_here(address: str) -> None:
    with remote.RemoteMachine(address) as there:
        with pytest.raises(InputError, match="target"):
            there.target("abacus")
        with pytest.raises(ModelFormatError, match="nowhere.json"):
            there.ask(tvm_forest.load, "nowhere.json")


@pytest.mark.parametrize(
    "wrong", ["", "nowhere", "host:", ":x", "1.2.3.4", "127.0.0.1:0", "127.0.0.1:99999"]
)
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(InputError, match="argument 'remote': .* is no address"):
        tvm_forest.tune(FOREST, remote=wrong)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="no server answers at '127.0.0.1:1' .*tvm-forest rpc"):
        tvm_forest.tune(FOREST, remote="127.0.0.1:1")


def test_another_version_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "describe_here", lambda: ("9.9", "a CPU"))
    monkeypatch.setattr(tvm_forest, "__version__", "9.9")
    monkeypatch.setattr(remote.RemoteMachine, "ask", lambda *_, **__: ("0.0", "a CPU"))
    with pytest.raises(InputError, match="runs tvm_forest 0.0, this is 9.9; install the same"):
        remote.RemoteMachine(address)


def test_a_port_that_is_taken_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="argument 'port': .* cannot be listened on"):
        remote.serve("127.0.0.1", int(address.rpartition(":")[2]))


def test_a_host_that_is_not_here_is_refused() -> None:
    with pytest.raises(InputError, match="of 'nowhere.invalid' cannot be listened on .* 'host'"):
        remote.serve("nowhere.invalid", 9190)


def test_other_machines_reach_no_server_that_was_not_told_to_listen_for_them(address: str) -> None:
    assert make_parser().parse_args(["rpc"]).host == "127.0.0.1"
    with socket.socket() as other:  # by another address of this machine
        assert other.connect_ex(("127.0.0.2", int(address.rpartition(":")[2])))


@pytest.mark.long
@pytest.mark.parametrize("host", [None, "0.0.0.0"])
def test_the_command_serves_this_machine_alone_unless_it_is_told(host: str | None) -> None:
    with socket.socket() as free:  # finds a port
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("", 0))
        port = free.getsockname()[1]
    given = ["rpc", "--port", str(port), *(["--host", host] if host else [])]
    command = [sys.executable, "-c", f"from tvm_forest.cli import main; main({given})"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert f"{host or '127.0.0.1'}:{port}" in process.stdout.readline()
        with remote.RemoteMachine(f"127.0.0.1:{port}") as there:
            assert there.cpu == cpu_name()
        with socket.socket() as other:  # by another address of this machine
            assert (other.connect_ex(("127.0.0.2", port)) == 0) is (host is not None)
    finally:
        process.terminate()
        process.communicate()
