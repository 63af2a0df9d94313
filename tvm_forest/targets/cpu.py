"""CPUs, through LLVM.

takes: lowered IRModule and Target; gives: a TVM executable.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import tvm
from tvm import s_tir, tirx

from ..errors import BuildError, InputError
from ..passes.cpu.outline import FinishOutlined, OutlineParts
from ..passes.cpu.share_blocks import DropTwins, ShareBlocks
from ..passes.gpu.run_threads import run_threads
from ..passes.model_table import ModelTable
from ..runtime.threads.pool import SET_LAUNCHER
from ..runtime.threads.pool_code import make_launcher_setter
from ..target import Target
from ..tir_gen.internals.names import BUILD_LLVM, CL_OPT, HOST_FEATURES
from .other_machines import complete_options

WHERE = "build: argument 'target'"

OPTIONS = ("mcpu", "num-cores", "opt-level", "vector-width")
"""Target options that users may set. Other options change results (`cl-opt`), or LLVM reports their
errors only while it compiles."""

ELSEWHERE = ("mtriple", "mattr", "mabi")
"""Options that are allowed too in a target whose "mtriple" names another machine."""

TUNING = (
    *("allow-", "branch", "ermsb", "false-deps-", "fast", "fsrm", "idiv", "lea-", "macrofusion"),
    "no-bypass-",
    *("pad-short-", "prefer-", "sbb-dep-", "slow-", "tuning-", "use-", "vzeroupper"),
)
"""Prefixes of LLVM features that are tuning hints, not abilities."""

ASKED_FOR = tuple(
    "aes amx- cldemote clflushopt clwb clzero crc32 enqcmd fsgsbase fxsr hreset invpcid kl movdir "
    "mwaitx pclmul pconfig pku prefetchi ptwrite rdpid rdpru rdrnd rdseed rtm serialize sgx sha "
    "shstk sm3 sm4 tsxldtrk uintr usermsr vaes vpclmulqdq waitpkg wbnoinvd widekl xsave".split()
)
"""Prefixes of LLVM features whose instructions are used only where a program asks for them, as our
code never does: cryptography, random numbers, cache flushes and the like."""

OPT_LEVEL = 2
"""LLVM's optimisation level; higher ones take a tenth longer, and do not make our code faster."""

NO_SLP = "-vectorize-slp:bool=0"
"""Turns off LLVM's SLP vectoriser: it would pack interleaved walks into vectors, and extract their
lanes again for every address, which is slower (`benchmarks/cpu.py`)."""

NO_LOOPS = "-vectorize-loops:bool=0"
"""Turns off LLVM's loop vectoriser where LLVM assumes fast gathers: it would gather the leaves, and
gathers are slow on Intel since the microcode of 2023 (`benchmarks/cpu.py`). Loops that a schedule
vectorizes are lowered to vectors before LLVM, and stay vectors."""

NO_UNROLLING = "-unroll-runtime:bool=0"
"""Turns off LLVM's unrolling of loops whose length is known only at run time: the copies of their
bodies cost a quarter of LLVM's time, and do not make our code faster."""

NO_REDUCTION = "-disable-lsr:bool=1"
"""Turns off LLVM's loop strength reduction for AVX-512: a walk by bit planes has hundreds of
addresses, and weighing them takes a third of the time of code generation. AVX-512 code is as fast
without it or faster; code for fewer registers is sometimes slower, so it stays on elsewhere."""


def tvm_target(target: Target) -> tvm.target.Target:
    """Return TVM's form of a target; without "mcpu" it is the CPU at hand.

    A target for another machine gets the defaults of `complete_options` instead.

    Raises:
        BuildError: TVM has no LLVM, or the code would not run on the CPU at hand.
        InputError: TVM or LLVM refuses an option, or an option would change results.
    """
    if tvm.get_global_func(BUILD_LLVM, allow_missing=True) is None:
        raise BuildError(
            "build: argument 'target': this TVM was built without LLVM, so 'llvm' cannot be "
            "compiled for; install apache-tvm from its wheel"
        )
    spec = target.host()
    _check_options(spec, OPTIONS + (ELSEWHERE if target.is_elsewhere else ()))
    if target.is_elsewhere:
        spec = complete_options(spec)
    if "mcpu" not in spec:
        spec |= _name_cpu_here()
    spec.setdefault("opt-level", OPT_LEVEL)
    try:
        known = abilities(tvm.target.Target(spec))
        options = [NO_SLP, NO_UNROLLING]
        options += [NO_LOOPS] if "fast-gather" in known else []
        options += [NO_REDUCTION] if "avx512f" in known else []
        full = tvm.target.Target({**spec, CL_OPT: options})
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{WHERE}: TVM refuses {target.host()}: {reason}") from None
    if not target.is_elsewhere:
        _check_cpu(full, spec["mcpu"])
    return full


def _check_options(spec: dict[str, Any], known: tuple[str, ...]) -> None:
    loose = [key for key in spec if str(key).startswith("fast-math")]
    if loose:
        raise InputError(f"{WHERE}: option {loose[0]!r} lets LLVM change results; leave it out")
    other = [key for key in spec if key != "kind" and key not in known]
    if other:
        raise InputError(
            f"{WHERE}: option {other[0]!r} cannot be {spec[other[0]]!r}; leave it out (have: "
            f"{', '.join(OPTIONS)}; for another machine {', '.join(ELSEWHERE)})"
        )


def _check_cpu(target: tvm.target.Target, cpu: str) -> None:
    """Refuse a CPU that LLVM does not know, that is not 64-bit, or that has more than this machine.

    Raises:
        InputError: LLVM does not know the CPU, or it has no 64-bit mode.
        BuildError: this machine lacks instructions that the CPU has.
    """
    codegen = tvm.target.codegen
    known = codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm"}))
    if cpu not in known:
        raise InputError(
            f"{WHERE}: LLVM knows no CPU {cpu!r}; leave 'mcpu' out for the CPU at hand, or use "
            f"one of: {', '.join(sorted(known))}"
        )
    here, wanted = instructions_here(), instructions(target)
    if "64bit" in here - wanted:  # LLVM would end the process
        raise InputError(f"{WHERE}: the CPU {cpu!r} has no 64-bit mode; name a newer one")
    missing = sorted(wanted - here)
    if missing:
        raise BuildError(
            f"{WHERE}: the CPU at hand ({codegen.llvm_get_system_cpu()}) lacks "
            f"{', '.join(missing[:6])}, which {cpu!r} has; leave 'mcpu' out for the CPU at hand"
        )


def abilities(target: tvm.target.Target) -> frozenset[str]:
    """Return the CPU features and tuning hints of a target, by LLVM's names."""
    return _list_abilities(str(target))


@functools.lru_cache(maxsize=64)
def _list_abilities(target: str) -> frozenset[str]:
    """Return the abilities of a target in TVM's JSON form: a build asks for the same ten times."""
    parsed = tvm.target.Target(json.loads(target))
    return frozenset(map(str, tvm.target.codegen.llvm_get_cpu_features(parsed)))


def instructions(target: tvm.target.Target) -> set[str]:
    """Return the instruction sets and modes of a target that our code may use."""
    return {x for x in abilities(target) if not x.startswith((*TUNING, *ASKED_FOR))}


def instructions_here() -> set[str]:
    """Return the instruction sets and modes of this CPU that our code may use."""
    named = instructions(tvm.target.Target({"kind": "llvm", **_name_cpu_here()}))
    return named | {name for name, is_there in _find_features().items() if is_there}


def _name_cpu_here() -> dict[str, Any]:
    """Return options for this CPU: its name, without features that it lacks.

    A virtual machine may report a CPU model but hide some of its instructions.
    """
    options: dict[str, Any] = {"mcpu": tvm.target.codegen.llvm_get_system_cpu()}
    named = instructions(tvm.target.Target({"kind": "llvm", **options}))
    hidden = sorted(name for name in named if _find_features().get(name) is False)
    return {**options, "mattr": [f"-{name}" for name in hidden]} if hidden else options


@functools.cache
def _find_features() -> dict[str, bool]:
    """Return, for each feature that LLVM looks for on this CPU, whether the CPU has it."""
    find = tvm.get_global_func(HOST_FEATURES)
    return {str(name): bool(is_there) for name, is_there in find().items()}


def compile_module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    """Compile lowered functions, and the function `SET_LAUNCHER`, to machine code.

    `SET_LAUNCHER` takes the address of the function that is to run the parallel loops.
    """
    setter = make_launcher_setter().with_attr("target", target)
    return compile_alone(tvm.IRModule({**mod.functions, SET_LAUNCHER: setter}), target)


def compile_alone(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    """Compile lowered functions to machine code without `SET_LAUNCHER`, for other machines."""
    return tvm.compile(mod, target=target, tir_pipeline=PIPELINE)


def compile_threads(mod: tvm.IRModule, target: Target) -> tvm.runtime.Executable:
    """Compile kernels to CPU code that runs blocks and threads one after the other.

    It serves tests of GPU schedules without a GPU: barriers and shared memory keep their meaning,
    so races and misplaced barriers give wrong results.

    Raises:
        BuildError: a barrier is not reached by all threads of a block; see also `tvm_target`.
        InputError: see `tvm_target`.
    """
    backwards = dict(target.options).get("order") == "backwards"
    functions = {var: run_threads(func, backwards) for var, func in mod.functions.items()}
    return compile_module(tvm.IRModule(functions), tvm_target(target))


PIPELINE = "tvm_forest"


def _pipeline() -> tuple[tvm.transform.Pass, Any, Any]:
    """Return the passes from plain loops to LLVM on a CPU, as TVM's own pipelines return them.

    The first result has TVM's passes, in the order of its default pipeline, and ours in between.
    Left out are those for TIR blocks, which no longer occur, those for other devices, and those
    that LLVM repeats: hoisting, common subexpressions, dead code. CompactBufferAllocation alone
    took 95 % of the time to compile bit-sliced walks. The other two results are functions that make
    TVM's last passes, for the host and for devices.
    """
    plain, block = tirx.transform, s_tir.transform
    passes = [
        DropTwins(),
        OutlineParts(),
        plain.FlattenBuffer(),
        plain.NarrowDataType(32),
        plain.VectorizeLoop(),
        plain.StorageRewrite(),
        plain.UnrollLoop(),
        plain.StmtSimplify(),
        block.RewriteUnsafeSelect(),
        plain.VerifyMemory(),
        plain.AnnotateEntryFunc(),
        plain.SplitHostDevice(),
        ModelTable(),
        plain.MakePackedAPI(),
        ShareBlocks(),
        FinishOutlined(),
    ]
    return (
        tvm.transform.Sequential(passes, name="tvm_forest.cpu"),
        tirx.compilation_pipeline.finalize_host_passes,
        tirx.compilation_pipeline.finalize_device_passes,
    )


tirx.register_tir_pipeline(PIPELINE, _pipeline)
