"""apache-tvm-ffi 0.1.15 beside TVM 0.27: equal big integers, and a process that ends.

    pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.15.post2
    python any_hash.py

With apache-tvm-ffi 0.1.14 it prints "differ" and "equal". With 0.1.15 it prints "taken for equal",
and ends with a segmentation fault in `tvm::ffi::ToJSONGraph`; so does `Schedule.tensorize`, which
copies a function by way of JSON.

A library may register C++ functions as "__any_hash__" and "__any_equal__" of a type, by address:

    0.1.14    int64_t (*)(const Any&)               bool (*)(const Any&, const Any&)
    0.1.15    TVMFFIAny (*)(const Any&) noexcept    TVMFFIAny (*)(const Any&, const Any&) noexcept

TVM's wheel was built with 0.1.14 and takes any newer version. So libtvm_ffi.so reads what
PrimTypeAnyHash of TVM (src/ir/type.cc) returns as the kind of a TVMFFIAny, which is not that of an
integer, and takes the register beside it for the address of an error. The other way round, AnyEqual
as TVM compiled it reads the kind of what BigInt's function returns, kTVMFFIBool, for true.

What would help: another name of the attributes with each way of calling, or a version of the binary
interface that is compared when a library is loaded, or wheels of TVM that ask for what they were
built with.
"""

import tvm
import tvm_ffi
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T


def compare(a, b):
    """Let TVM compare two values, as it does with those of annotations that are given twice."""
    with IRBuilder(), T.prim_func(s_tir=True), T.sblock("block"):
        T.sblock_attr({"key": a})
        try:
            T.sblock_attr({"key": b})
        except Exception:
            return "differ"
    return "taken for equal"


if __name__ == "__main__":
    print(f"apache-tvm {tvm.__version__}, apache-tvm-ffi {tvm_ffi.__version__}")
    print(f"2**70 and 2**71: {compare(2**70, 2**71)}", flush=True)
    number = tvm.tirx.IntImm("int32", 1)
    again = tvm.ir.load_json(tvm.ir.save_json(number))
    print(f"1 and the same from JSON: {'equal' if int(again) == int(number) else 'differ'}")
