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
import tvm, tvm_ffi
from tvm.runtime.vm import VirtualMachine
assert tvm.base._RUNTIME_ONLY
for name in names.split(","):
    module = tvm.runtime.load_module(f"{folder}/{name}.so")
    if name == "compiled":
        for function in open(f"{folder}/{name}.names").read().split():
            given = module.get_function(function, query_imports=True)
            tvm_ffi.register_global_func(function, given)
    vm = VirtualMachine(module, tvm.cpu())
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
  void AllocData(DLTensor* t) {
    t->data = std::aligned_alloc(64, (GetDataSize(*t) + 63) / 64 * 64);
  }
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

IN_C = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

typedef int (*Task)(int, void *, void *);
static void *allocate(int device, int id, uint64_t size, int code, int bits) {
  return aligned_alloc(64, (size + 63) / 64 * 64);
}
static int release(int device, int id, void *memory) { return free(memory), 0; }
static int launch(Task task, void *data, int wanted) {
  struct { void *sync; int32_t tasks; } one = {NULL, 1};
  return task(0, &one, data);
}
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = release;
int (*__TVMBackendParallelLaunch)(Task, void *, int) = launch;

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  for (int i = 0; i < count; ++i) if (parts[i]) fputs(parts[i], stderr);
}
int TVMFFIEnvModRegisterSystemLibSymbol(const char *name, void *symbol) { return 0; }
int FUNCTION(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);

int main(int count, char **words) {
  static DLTensor tensors[32];
  static TVMFFIAny args[32], result;
  static int64_t shapes[32][4];
  int n = (count - 1) / 4;
  for (int k = 0; k < n; ++k) {
    char **word = words + 1 + 4 * k, *rest = word[2];
    DLTensor *t = tensors + k;
    t->dtype.code = atoi(word[0]), t->dtype.bits = atoi(word[1]), t->dtype.lanes = 1;
    t->device.device_type = kDLCPU, t->shape = shapes[k];
    size_t size = t->dtype.bits / 8;
    while (*rest) size *= t->shape[t->ndim++] = strtol(rest, &rest, 10), rest += *rest == ',';
    t->data = aligned_alloc(64, (size + 64) / 64 * 64);
    FILE *in = k < n - 1 ? fopen(word[3], "rb") : NULL;
    if (in && fread(t->data, 1, size, in) != size) return 2;
    if (in) fclose(in);
    args[k].type_index = kTVMFFIDLTensorPtr, args[k].v_ptr = t;
    if (k < n - 1) continue;
    if (FUNCTION(NULL, args, n, &result)) return 3;
    FILE *out = fopen(word[3], "wb");
    fwrite(t->data, 1, size, out);
    fclose(out);
  }
  return 0;
}
"""
"""Calls a function of TVM's, without any file of TVM; loops of threads run on one.

It is given four words for each tensor: code and bits of the dtype, shape ("600,5"), and a file; the
last tensor is the result.
"""
