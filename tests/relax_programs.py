"""Programs that run exported Relax modules without this package: in Python, and in C++.

takes: a folder with libraries and rows; gives: files with what the modules answer.

Each program is given the folder, the names of libraries, and numbers of rows, such as
"DIR linked,legalised 1 7". It reads `rows<n>` and writes `<library><n>_<k>` for the k-th tensor of
what `main` of a library gives, all of them as plain bytes.
"""

from __future__ import annotations

PREPARE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
for name in REFUSED:
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is there")
import numpy as np
folder, names, *sizes = sys.argv[1:]
def read(n):
    rows = np.fromfile(f"{folder}/rows{n}", "f4").reshape(int(n), -1)
    space = np.empty(rows.nbytes + 64, "u1")  # TVM promises LLVM that tensors begin at 64 bytes
    begin = -space.ctypes.data % 64
    aligned = space[begin:begin + rows.nbytes].view("f4").reshape(rows.shape)
    aligned[:] = rows
    return aligned
def write(name, n, tensors):
    for k, tensor in enumerate(tensors):
        np.from_dlpack(tensor).tofile(f"{folder}/{name}{n}_{k}")
"""

BY_TVM = (
    'REFUSED = ("tvm_forest", "xgboost", "sklearn")\n'
    + PREPARE
    + """
import tvm
from tvm.runtime.vm import VirtualMachine
assert tvm.base._RUNTIME_ONLY
for name in names.split(","):
    vm = VirtualMachine(tvm.runtime.load_module(f"{folder}/{name}.so"), tvm.cpu())
    for n in sizes:
        write(name, n, vm["main"](tvm.runtime.tensor(read(n))))
"""
)
"""By TVM's runtime; the environment has TVM_USE_RUNTIME_LIB=1."""

BY_FFI = (
    'REFUSED = ("tvm_forest", "tvm", "xgboost", "sklearn")\n'
    + PREPARE
    + """
import ctypes, os
import tvm_ffi
ctypes.CDLL(os.environ["TVM_RUNTIME"], ctypes.RTLD_GLOBAL)
for name in names.split(","):
    vm = tvm_ffi.load_module(f"{folder}/{name}.so")["vm_load_executable"]()
    vm["vm_initialization"](1, 0, 2, 1, 0, 2)  # device: CPU 0; pooled memory; and for the host
    for n in sizes:
        write(name, n, vm["main"](tvm_ffi.from_dlpack(read(n))))
"""
)
"""By apache-tvm-ffi, and the one file of TVM that the environment names."""

IN_CPP = r"""
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

using namespace tvm::ffi;

struct Aligned {
  void AllocData(DLTensor* t) { t->data = std::aligned_alloc(64, (GetDataSize(*t) + 63) / 64 * 64); }
  void FreeData(DLTensor* t) { std::free(t->data); }
};

Tensor ReadRows(const std::string& path, int64_t n) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  int64_t width = static_cast<int64_t>(bytes.size() / sizeof(float)) / n;
  DLDataType f4{kDLFloat, 32, 1};
  Tensor rows = Tensor::FromNDAlloc(Aligned(), Shape({n, width}), f4, DLDevice{kDLCPU, 0});
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(rows.data_ptr()));
  return rows;
}

Module LoadMachine(const std::string& path) {
  Module machine = Module::LoadFromFile(path)
                       ->GetFunction("vm_load_executable").value()().cast<Module>();
  machine->GetFunction("vm_initialization").value()(1, 0, 2, 1, 0, 2);
  return machine;
}

int main(int count, char** words) {
  if (!dlopen(std::getenv("TVM_RUNTIME"), RTLD_NOW | RTLD_GLOBAL)) return std::puts(dlerror()), 1;
  std::string folder = words[1], name;
  for (std::stringstream names(words[2]); std::getline(names, name, ',');) {
    Module machine = LoadMachine(folder + "/" + name + ".so");
    for (int at = 3; at < count; ++at) {
      Any given = machine->GetFunction("main").value()(
          ReadRows(folder + "/rows" + words[at], std::atol(words[at])));
      int k = 0;
      for (Tensor each : given.cast<Array<Tensor>>()) {
        std::string path = folder + "/" + name + words[at] + "_" + std::to_string(k++);
        std::ofstream(path, std::ios::binary)
            .write(static_cast<char*>(each.data_ptr()), GetDataSize(*each.GetDLTensorPtr()));
      }
    }
  }
}
"""
"""By libtvm_ffi, and the one file of TVM that the environment names."""
