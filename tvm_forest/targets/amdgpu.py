"""What AMD's GPUs do that TVM's code generator has no right words for, as LLVM IR.

takes: nothing; gives: LLVM IR of functions that kernels call.

    barriers    TVM writes `s_barrier` alone; newer GPUs do not wait for memory there by themselves
    shuffles    TVM's take 32-bit numbers of threads only
    atomic sums a loop that compares and swaps would do, where the hardware can add
    exp, ...    TVM asks for AMD's library of bitcode, which this machine need not have

The arithmetic is done in float64, and rounded to float32 where that was asked for.
"""

from __future__ import annotations

import struct
from math import factorial

from .kernel_text import name_atomic_add

DEVICE = """
!llvm.module.flags = !{!1}
!0 = !{}
!1 = !{i32 1, !"amdhsa_code_object_version", i32 500}

define linkonce_odr void @tvmf_barrier() alwaysinline convergent nounwind {
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  ret void
}
declare void @llvm.amdgcn.s.barrier() convergent
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32) convergent
"""
"""The barrier; and code object version 5, which ROCm reads since 5.7, and TVM's LLVM would not
choose."""

ATOMIC_ADD = """
define linkonce_odr {type} @{name}(ptr addrspace(1) %p, {type} %v) alwaysinline {{
  %old = atomicrmw fadd ptr addrspace(1) %p, {type} %v syncscope("agent") monotonic,
         !amdgpu.no.fine.grained.memory !0, !amdgpu.ignore.denormal.mode !0
  ret {type} %old
}}
"""

SHUFFLE_DOWN = """
define linkonce_odr i32 @tvmf_shuffle_down_int32(i32 %x, i32 %by, i32 %width)
    alwaysinline convergent {
  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %lane = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
  %most = sub i32 %width, 1
  %own = and i32 %lane, %most
  %first = sub i32 %lane, %own
  %wanted = add i32 %own, %by
  %inside = icmp ult i32 %wanted, %width
  %chosen = select i1 %inside, i32 %wanted, i32 %own
  %from = add i32 %first, %chosen
  %byte = shl i32 %from, 2
  %taken = call i32 @llvm.amdgcn.ds.bpermute(i32 %byte, i32 %x)
  ret i32 %taken
}
define linkonce_odr float @tvmf_shuffle_down_float32(float %x, i32 %by, i32 %width)
    alwaysinline convergent {
  %bits = bitcast float %x to i32
  %taken = call i32 @tvmf_shuffle_down_int32(i32 %bits, i32 %by, i32 %width)
  %value = bitcast i32 %taken to float
  ret float %value
}
define linkonce_odr double @tvmf_shuffle_down_float64(double %x, i32 %by, i32 %width)
    alwaysinline convergent {
  %halves = bitcast double %x to <2 x i32>
  %low = extractelement <2 x i32> %halves, i32 0
  %high = extractelement <2 x i32> %halves, i32 1
  %low2 = call i32 @tvmf_shuffle_down_int32(i32 %low, i32 %by, i32 %width)
  %high2 = call i32 @tvmf_shuffle_down_int32(i32 %high, i32 %by, i32 %width)
  %one = insertelement <2 x i32> poison, i32 %low2, i32 0
  %both = insertelement <2 x i32> %one, i32 %high2, i32 1
  %value = bitcast <2 x i32> %both to double
  ret double %value
}
"""
"""A lane takes the value of the one `by` lanes on in its group of `width`; its own if that
is outside."""

EXP = """
define linkonce_odr double @tvmf_{name}_float64(double %x) alwaysinline {{
  %below = fcmp ogt double %x, 2000.0
  %x1 = select i1 %below, double 2000.0, double %x
  %above = fcmp olt double %x1, -2000.0
  %x2 = select i1 %above, double -2000.0, double %x1
  {reduced}
  %k = call i32 @llvm.fptosi.sat.i32.f64(double %n)
  {polynomial}
  %power = call double @llvm.ldexp.f64.i32(double %sum, i32 %k)
  ret double %power
}}
"""
"""exp(n ln 2 + r) = 2^n exp(r) with |r| <= ln(2) / 2, where Taylor's series ends at r^14."""

REDUCED = {
    "exp": (
        "%scaled = fmul double %x2, 0x3FF71547652B82FE",  # 1 / ln 2
        "%n = call double @llvm.rint.f64(double %scaled)",
        # ln 2 in two parts, of which the first has 20 trailing zeros: n times it is exact
        "%minus = fneg double %n",
        "%r1 = call double @llvm.fma.f64(double %minus, double 0x3FE62E42FEE00000, double %x2)",
        "%r = call double @llvm.fma.f64(double %minus, double 0x3DEA39EF35793C76, double %r1)",
    ),
    "exp2": (
        "%n = call double @llvm.rint.f64(double %x2)",
        "%rest = fsub double %x2, %n",
        "%r = fmul double %rest, 0x3FE62E42FEFA39EF",  # ln 2
    ),
}

LOG1P = """
define linkonce_odr double @tvmf_log1p_float64(double %x) alwaysinline {{
  %u = fadd double %x, 1.0
  %above = fsub double %u, 1.0
  %low = fsub double %x, %above
  %far = fsub double %u, %x
  %high = fsub double 1.0, %far
  %large = fcmp ogt double %x, 1.0
  %lost = select i1 %large, double %high, double %low
  %parts = call {{ double, i32 }} @llvm.frexp.f64.i32(double %u)
  %m1 = extractvalue {{ double, i32 }} %parts, 0
  %e1 = extractvalue {{ double, i32 }} %parts, 1
  %small = fcmp olt double %m1, 0x3FE6A09E667F3BCD
  %m2 = fmul double %m1, 2.0
  %e2 = sub i32 %e1, 1
  %m = select i1 %small, double %m2, double %m1
  %e = select i1 %small, i32 %e2, i32 %e1
  %k = sitofp i32 %e to double
  %f = fsub double %m, 1.0
  %f2 = fadd double %f, 2.0
  %s = fdiv double %f, %f2
  %r = fmul double %s, %s
  {polynomial}
  %s2 = fadd double %s, %s
  %odd = fmul double %s2, %r
  %curved = fmul double %odd, %sum
  %share = fdiv double %lost, %u
  %little = call double @llvm.fma.f64(double %k, double 0x3DEA39EF35793C76, double %share)
  %tail = fadd double %curved, %little
  %near = fadd double %s2, %tail
  %whole = call double @llvm.fma.f64(double %k, double 0x3FE62E42FEE00000, double %near)
  %endless = fcmp oeq double %x, 0x7FF0000000000000
  %log = select i1 %endless, double %x, double %whole
  ret double %log
}}
"""
"""log(1 + x) for x >= 0: 1 + x = 2^k m, log m = 2 atanh((m - 1) / (m + 1)), and what 1 + x lost."""

NARROW = """
define linkonce_odr float @tvmf_{name}_float32(float %x) alwaysinline {{
  %wide = fpext float %x to double
  %found = call double @tvmf_{name}_float64(double %wide)
  %near = fptrunc double %found to float
  ret float %near
}}
"""

INTRINSICS = """
declare double @llvm.rint.f64(double)
declare double @llvm.fma.f64(double, double, double)
declare double @llvm.ldexp.f64.i32(double, i32)
declare i32 @llvm.fptosi.sat.i32.f64(double)
declare { double, i32 } @llvm.frexp.f64.i32(double)
"""

FLOATS = {"float32": "float", "float64": "double"}


def arithmetic() -> str:
    """Return `tvmf_exp`, `tvmf_exp2` and `tvmf_log1p` of both widths, for any machine."""
    taylor = _write_polynomial([1 / factorial(power) for power in range(15)])
    rest = _write_polynomial([1 / (2 * term + 1) for term in range(1, 13)])
    powers = (
        EXP.format(name=name, reduced="\n  ".join(reduced), polynomial=taylor)
        for name, reduced in REDUCED.items()
    )
    narrow = (NARROW.format(name=name) for name in ("exp", "exp2", "log1p"))
    return "".join([INTRINSICS, LOG1P.format(polynomial=rest), *powers, *narrow])


def functions() -> str:
    """Return all functions that kernels may call."""
    atomics = (
        ATOMIC_ADD.format(name=name_atomic_add(dtype), type=kind) for dtype, kind in FLOATS.items()
    )
    return "".join([DEVICE, arithmetic(), *atomics, SHUFFLE_DOWN])


def _write_polynomial(coefficients: list[float]) -> str:
    """Return IR that computes %sum, a polynomial of %r, by Horner's scheme.

    Args:
        coefficients: the constant first.
    """
    lines, last = list[str](), _hexadecimal(coefficients[-1])
    for power in range(len(coefficients) - 2, -1, -1):
        name, constant = f"%p{power}" if power else "%sum", _hexadecimal(coefficients[power])
        call = f"call double @llvm.fma.f64(double {last}, double %r, double {constant})"
        lines.append(f"{name} = {call}")
        last = name
    return "\n  ".join(lines)


def _hexadecimal(value: float) -> str:
    return f"0x{int.from_bytes(struct.pack('>d', value), 'big'):016X}"
