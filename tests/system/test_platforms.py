"""What differs between systems and processors, asked for others than those at hand."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi

import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import BuildError, InputError
from tvm_forest.predictor.exporting.toolchain import find_toolchain
from tvm_forest.runtime import linked
from tvm_forest.runtime.threads import pool_code
from tvm_forest.search.machines import nearest, shipped_machines
from tvm_forest.search.measuring.child import Child
from tvm_forest.system import archive
from tvm_forest.system.process.scratch import make_folder
from tvm_forest.target import Target, parse_cpuinfo, parse_target, read_abilities
from tvm_forest.targets import machine_code
from tvm_forest.targets.objects import write_object

ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm
CPU implementer\t: 0x41
CPU part\t: 0xd0c

processor\t: 1
Features\t: none
"""
INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz
flags\t\t: fpu sse2 ssse3 avx avx2 avx512f avx512bw

processor\t: 1
"""

# -- processors -----------------------------------------------------------------------------------


def read(text: str, machine: str) -> frozenset[str]:
    return read_abilities(parse_cpuinfo(text.splitlines(keepends=True)), machine)


def test_an_arm_processor_tells_its_abilities_as_features() -> None:
    found = read(ARM, "aarch64")
    assert {"neon", "aes", "asimdhp"} <= found and not {"none", "asimd"} & found


def test_an_x86_processor_tells_them_as_flags(monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.platform", "linux")  # Windows is asked where there are none
    assert read(INTEL, "x86_64") == set("fpu sse2 ssse3 avx avx2 avx512f avx512bw".split())
    assert read(ARM, "x86_64") == frozenset()


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
@pytest.mark.parametrize("text", [INTEL, ""], ids=["of an emulator's host", "that is not there"])
def test_every_aarch64_processor_has_neon_whatever_a_file_tells(machine: str, text: str) -> None:
    assert read(text, machine) == {"neon"}


def test_other_processors_have_no_flags_of_x86() -> None:
    assert read(INTEL, "riscv64") == frozenset()


def test_schedules_for_native_arm_are_priced_by_an_arm_machine(monkeypatch: Any) -> None:
    monkeypatch.setattr("tvm_forest.target.cpu_abilities", lambda: read(ARM, "aarch64"))
    monkeypatch.setattr("tvm_forest.target.cpu_vendor", lambda: "")
    assert nearest(shipped_machines(), Target()).name == "Neoverse"
    monkeypatch.setattr("tvm_forest.target.cpu_abilities", lambda: read(INTEL, "x86_64"))
    assert nearest(shipped_machines(), Target()).name != "Neoverse"


def test_windows_is_asked_for_what_it_knows(monkeypatch: Any) -> None:
    from tvm_forest import target

    asked = []

    class Kernel:
        @staticmethod
        def IsProcessorFeaturePresent(number: int) -> int:
            asked.append(number)
            return int(number in (36, 40))

    libraries = type("Libraries", (), {"kernel32": Kernel})
    monkeypatch.setattr(target.sys, "platform", "win32")
    monkeypatch.setattr(target.ctypes, "windll", libraries, raising=False)
    assert target.read_abilities({}, "amd64") == {"ssse3", "avx2"}
    assert asked == [36, 39, 40, 41]


def test_the_maker_of_a_processor_is_that_of_windows_name_for_it(monkeypatch: Any) -> None:
    from tvm_forest import target

    monkeypatch.setattr(target, "_read_cpu", lambda field: "")
    name = "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD"
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", name)
    assert target.cpu_vendor.__wrapped__() == "AuthenticAMD"


# -- Windows, as far as it can be tried elsewhere --------------------------------------------------


@pytest.fixture
def on_windows(monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.platform", "win32")


OBJECTS = {
    "win32": ("x86_64-pc-windows-gnu", b"\x64\x86"),
    "darwin": ("arm64-apple-macos11", b"\xcf\xfa\xed\xfe"),
}
"""Machines of systems, and how their object files begin."""

ASKED = {
    "win32": "CreateThread CreateSemaphoreW WaitForSingleObject SwitchToThread _aligned_malloc",
    "darwin": "_dispatch_semaphore_create _dispatch_semaphore_wait _pthread_create _sched_yield",
}
MISSING = {"win32": "pthread_|sem_|sched_|usleep|aligned_alloc|free", "darwin": "sem_"}


@pytest.mark.parametrize("system", OBJECTS)
def test_threads_ask_a_system_for_what_it_has(system: str, tmp_path: Path) -> None:
    triple, begin = OBJECTS[system]
    head = pool_code._target_lines(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    source, made = tmp_path / "pool.ll", tmp_path / "pool.o"
    text = pool_code.read_texts(system)
    source.write_text(f"{head}\n{text}", "ascii")
    tvm_ffi.load_module(str(source), keep_module_alive=False).write_to_file(str(made))
    held = made.read_bytes()
    assert held.startswith(begin)
    assert [name for name in ASKED[system].split() if name.encode() not in held] == []
    assert not re.findall(rf"^declare .*@(?:{MISSING[system]})", text, re.MULTILINE)
    assert "declare i32 @sem_wait(ptr)" in pool_code.read_texts("linux")


def test_code_is_stored_as_bitcode_whatever_compiler_there_is(
    on_windows: None, tmp_path: Path
) -> None:
    assert machine_code._link(None, tmp_path) is None  # type: ignore[arg-type]


def test_a_compiler_is_zigs(on_windows: None, monkeypatch: Any) -> None:
    on_path = ["zig", "gcc"]
    monkeypatch.setattr("shutil.which", lambda name: name if name in on_path else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = find_toolchain(parse_target("llvm"), Path("model.dll"), None)
    assert found.command == ("zig", "cc", "-target", "x86_64-windows-gnu")
    on_path.remove("zig")
    with pytest.raises(BuildError, match="was found; pip install ziglang, or use Predictor.save"):
        find_toolchain(parse_target("llvm"), Path("model.dll"), None)


@pytest.mark.parametrize("system", ["msvc", "gnu"])
def test_code_made_there_asks_for_nothing_of_microsofts_compiler(
    system: str, tmp_path: Path
) -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": f"x86_64-pc-windows-{system}"})
    function = "define double @one_more(double %x) {\n %y = fadd double %x, 1.0\n ret double %y\n}"

    class Module:
        @staticmethod
        def inspect_source(kind: str) -> str:
            return f"{pool_code._target_lines(target)}\n{function}\n"

    library: Any = type("Library", (), {"mod": Module})
    write_object(library, tmp_path / "code.o", "airline_")
    held = (tmp_path / "code.o").read_bytes()
    assert b"one_more" in held and b"_fltused" not in held


def test_a_file_that_a_reader_has_open_is_replaced_once_it_is_closed(
    on_windows: None, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(archive, "_PAUSES", (0.0, 0.0, 0.0))
    file, replace, calls = tmp_path / "model.tvmf", os.replace, []

    def refuse(source: Any, place: Any) -> None:
        calls.append(place)
        if len(calls) < 3:
            raise PermissionError(13, "Access is denied")
        replace(source, place)

    monkeypatch.setattr("os.replace", refuse)
    archive.write_file(file, b"new", "save")
    assert (file.read_bytes(), len(calls)) == (b"new", 3)


def test_a_file_that_stays_open_is_named(
    on_windows: None, monkeypatch: Any, tmp_path: Path
) -> None:
    def refuse(source: Any, place: Any) -> None:
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(archive, "_PAUSES", (0.0,))
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InputError, match=r"save: cannot write .*another program has the file open"):
        archive.write_file(tmp_path / "model.tvmf", b"new", "save")
    assert list(tmp_path.iterdir()) == []


def test_a_status_of_windows_is_named() -> None:
    class Process:
        @staticmethod
        def wait() -> int:
            return 0xC0000005

    asked: Any = Child.__new__(Child)
    asked._output = io.BytesIO()
    assert asked._explain_end(Process()) == "crashed: access violation (0xC0000005)"


def test_a_loaded_library_does_not_keep_a_folder_from_ending(
    on_windows: None, monkeypatch: Any
) -> None:
    def refuse(path: Any, *others: Any, **named: Any) -> None:
        raise PermissionError(13, "Access is denied", path)

    monkeypatch.setattr("os.unlink", refuse)
    with make_folder("load_library") as folder:
        (folder / "code.dll").touch()
    monkeypatch.undo()
    (folder / "code.dll").unlink()
    folder.rmdir()


def test_a_library_is_unmapped_by_the_system_that_mapped_it(monkeypatch: Any) -> None:
    here = linked._find_unmapper()
    libraries = type("Libraries", (), {"kernel32": type("Kernel", (), {"FreeLibrary": "it"})})
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("ctypes.windll", libraries, raising=False)
    assert (linked._find_unmapper(), here == "it") == ("it", False)


# -- GPUs of Apple --------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["metal", {"kind": "metal"}, tvm.target.Target("apple/m1-gpu")])
def test_metal_is_refused_with_what_works_instead(given: Any) -> None:
    message = "'metal' is not supported yet; use 'llvm', or 'llvm' with the 'mtriple' '(.*)' for a"
    with pytest.raises(InputError, match=message) as refused:
        tvm_forest.build(drawn_forest(1, 1), given)
    triple = str(refused.value).split("'")[-2]
    assert parse_target({"kind": "llvm", "mtriple": triple}).has("neon")
