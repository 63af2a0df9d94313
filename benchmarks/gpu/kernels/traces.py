"""What the kernels of a GPU load and store: every address of every lane, by emulation.

takes: a predictor of target "cuda", rows; gives: Site, how often each access of the text is done,
and how many wavefronts that takes.

The text of the kernels is compiled by g++, as the tests do it, with a note of each index into
shared memory or memory of the device. Between two barriers the k-th access of a thread at a place
of the text is done together with the k-th of the others of its warp. It takes as many wavefronts as

    in shared memory          different words that meet in the bank which is asked for most
    in memory of the device   different lines of 128 bytes; once where two places of the text
                              load the same, for compilers load it once
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import HELPERS
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.library import Backend

sys.path += HELPERS

import emulated_cuda

SHARED = re.compile(r"__shared__ alignas\(\d+\) \w+ (\w+)\[")
POINTER = re.compile(r"\* (?:__restrict__ )?(\w+)")
AT_LAUNCH = re.compile(r"\* (\w+) = \([\w ]+\*\)\(at_launch \+")
BARRIER = "__syncthreads();"
HEADERS = "#include <vector>\n#include <algorithm>\n"
"""Stand before the text, which makes `uint` a word of its own."""
RECORDER = """
namespace cycles {
using emulation::Size;
struct Site { bool shared; double operations, wavefronts; };
struct Touch { unsigned long at; unsigned size; };
static Site sites[SITES];
static std::vector<Touch> touches[SITES][1024];
static unsigned long loads[SITES];  // sums over the loads from memory of the device, to compare
static unsigned arrived;
static Size block = {~0u, 0, 0};
inline unsigned thread() {
  Size at = emulation::thread_at, size = emulation::block_size;
  return at.x + size.x * (at.y + size.y * at.z);
}
enum { LOAD, SHARED, STORE };
inline unsigned long mix(unsigned long x) {
  x = (x ^ x >> 31) * 0x9e3779b97f4a7c15;
  return x ^ x >> 29;
}
inline unsigned banks_of(std::vector<Touch>& lanes) {
  unsigned together = 0, most = 0;
  std::vector<unsigned long> words;
  unsigned part = std::max(1u, 128 / std::max(4u, lanes[0].size));
  for (size_t begin = 0; begin < lanes.size(); begin += part, together += most) {
    words.clear();
    for (size_t i = begin; i < std::min(lanes.size(), begin + part); ++i)
      for (unsigned b = 0; b < lanes[i].size; b += 4) words.push_back((lanes[i].at + b) / 4);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    unsigned load[32] = {};
    most = 0;
    for (unsigned long word : words) most = std::max(most, ++load[word % 32]);
  }
  return together;
}
inline unsigned lines_of(std::vector<Touch>& lanes) {
  std::vector<unsigned long> lines;
  for (Touch& touch : lanes) lines.push_back(touch.at / 128);
  std::sort(lines.begin(), lines.end());
  return std::unique(lines.begin(), lines.end()) - lines.begin();
}
inline bool repeats(int site) {  // loads what another site loads, which compilers do once
  for (int other = 0; other < site; ++other)
    if (loads[site] && loads[site] == loads[other]) return true;
  return false;
}
inline void count() {
  std::vector<Touch> lanes;
  for (int site = 0; site < SITES; ++site) {
    if (repeats(site)) continue;
    for (unsigned warp = 0; warp < 32; ++warp)
      for (size_t k = 0;; ++k) {
        lanes.clear();
        for (unsigned lane = 0; lane < 32; ++lane) {
          std::vector<Touch>& mine = touches[site][32 * warp + lane];
          if (k < mine.size()) lanes.push_back(mine[k]);
        }
        if (lanes.empty()) break;
        sites[site].operations += 1;
        sites[site].wavefronts += sites[site].shared ? banks_of(lanes) : lines_of(lanes);
      }
  }
  for (auto& site : touches) for (auto& mine : site) mine.clear();
  std::fill(loads, loads + SITES, 0);
}
template <class Index>
Index touch(int site, int kind, const void* base, unsigned item, unsigned width, Index index) {
  Size now = emulation::block_at;
  if (now.x != block.x || now.y != block.y || now.z != block.z) count(), block = now, arrived = 0;
  bool shared = sites[site].shared = kind & SHARED;
  unsigned long at = (shared ? (unsigned long)base : 0) + index * item;  // others begin with a line
  std::vector<Touch>& mine = touches[site][thread()];
  mine.push_back({at, item * width});
  if (kind == LOAD) loads[site] += mix(mix(mix((unsigned long)base + at) + mine.size()) + thread());
  return index;
}
inline void meet() {
  Size size = emulation::block_size;
  if (++arrived == size.x * size.y * size.z) count(), arrived = 0;
}
}  // namespace cycles
extern "C" __attribute__((used)) void cycles_report(double* operations, double* wavefronts) {
  cycles::count();
  for (int k = 0; k < SITES; ++k)
    operations[k] = cycles::sites[k].operations, wavefronts[k] = cycles::sites[k].wavefronts;
  std::fill(cycles::sites, cycles::sites + SITES, cycles::Site());  // the text may be run again
}
"""


class Site(NamedTuple):
    """A place of the text that accesses memory.

    Attributes:
        kernel: where it stands.
        buffer: name of the memory.
        shared: whether this is shared memory.
        stores: whether it is written.
        operations: how often a warp has done it.
        wavefronts: how many passes through memory that took.
    """

    kernel: str
    buffer: str
    shared: bool
    stores: bool
    operations: float
    wavefronts: float


def trace(predictor: Any, rows: Any) -> tuple[list[Site], Any]:
    """Return all accesses of a prediction, and its margins."""
    noted = _Notes()
    made: list[Path] = []

    def translate(source: str, architecture: str, *_: object) -> bytes:
        noted.sites.clear()
        text = emulated_cuda.with_calls(noted.write(source))
        path = emulated_cuda.compiled(text, "traced", emulated_cuda.libcuda())
        made.append(path)
        return f"EMULATED {architecture} {path}".encode()

    driver = emulated_cuda.libcuda()
    predictor.library.backend = Backend(lambda: CudaDriver(library=driver), translate)
    emulated_cuda.settings().emulated_set(b"seed", 0)
    margins = predictor.predict_margin(rows)
    return noted.count(made[-1]), margins


def trace_kernel(
    source: str, kernel: str, launch: tuple[int, int], arrays: list[Any], n: int
) -> tuple[list[Site], Any]:
    """Return all accesses of a kernel that was written by hand, and its first array.

    Args:
        source: CUDA text.
        kernel: its name; it takes the arrays and n.
        launch: blocks, and threads of a block.
        arrays: what it writes and reads; the third are the rows.
        n: number of rows.
    """
    notes = _Notes()
    text = emulated_cuda.with_calls(notes.write(source))
    path = emulated_cuda.compiled(text, "traced", emulated_cuda.libcuda())
    library, driver = ctypes.CDLL(str(path)), ctypes.CDLL(emulated_cuda.libcuda())
    ends = (ctypes.c_void_p(), ctypes.c_void_p())
    library.shared_memory_of(*map(ctypes.byref, ends))
    call = ctypes.cast(getattr(library, f"call_{kernel}"), ctypes.c_void_p)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in arrays]
    values = [*pointers, ctypes.c_int64(n)]
    sizes = (ctypes.c_int * len(values))(*map(ctypes.sizeof, values))
    function = _Function(call, *ends, len(values), sizes, 0)
    given = (ctypes.c_void_p * len(values))(*(ctypes.addressof(x) for x in values))
    grid, block = ([ctypes.c_uint(x) for x in (size, 1, 1)] for size in launch)
    driver.cuCtxPushCurrent_v2(None)
    launched = ctypes.byref(function), *grid, *block, ctypes.c_uint(0), None, given, None
    done = driver.cuLaunchKernel(*launched)
    driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    assert done == 0, "threads of the kernel meet"
    return notes.count(path), arrays[0]


class _Function(ctypes.Structure):
    """A kernel as the emulated driver has it, see `libcuda.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("call", "shared", "end")),
        ("arguments", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_int)),
        ("declared", ctypes.c_long),
    )


class _Notes:
    """Writes notes of accesses into CUDA text, and numbers them."""

    def __init__(self) -> None:
        self.sites: list[tuple[str, str, bool, bool]] = []

    def write(self, source: str) -> str:
        """Return the text with its notes."""
        begins = [x.start() for x in emulated_cuda.KERNEL.finditer(source)] + [len(source)]
        parts = [source[: begins[0]]]
        for begin, end in zip(begins[:-1], begins[1:], strict=True):
            found = emulated_cuda.KERNEL.match(source, begin)
            assert found is not None
            body = source[found.end() : end]
            shared = set(SHARED.findall(body)) | set(AT_LAUNCH.findall(body))
            names = shared | set(POINTER.findall(found[2]))
            lines = [
                line
                if "__shared__" in line or "(at_launch +" in line
                else self._write_line(line, found[1], names, shared)
                for line in body.split("\n")
            ]
            text = "\n".join(lines).replace(BARRIER, f"cycles::meet(); {BARRIER}")
            parts += [found[0], text]
        head = RECORDER.replace("SITES", str(max(1, len(self.sites))))
        return HEADERS + parts[0] + head + "".join(parts[1:])

    def count(self, path: Path) -> list[Site]:
        """Return what a library of the text has counted."""
        counts = np.zeros((2, len(self.sites)))
        report = ctypes.CDLL(str(path)).cycles_report
        report(*(row.ctypes.data_as(ctypes.c_void_p) for row in counts))
        return [Site(*x, *found) for x, *found in zip(self.sites, *counts.tolist(), strict=True)]

    def _write_line(self, line: str, kernel: str, names: set[str], shared: set[str]) -> str:
        name = "|".join(sorted(names))
        vector, at_bytes = rf"\*\((\w+?)(\d)\*\)\(({name}) \+ ", rf"tvmf_at\(\(&\(({name})\["
        pattern = re.compile(rf"{vector}|{at_bytes}|\b({name})\[")
        out, at = "", 0
        while (found := pattern.search(line, at)) is not None:
            name = found[3] or found[4] or found[5]
            stop = _find_end(line, found.end())
            if found[4]:
                number, begin = len(self.sites), line.index(", ", stop) + 2
                self.sites.append((kernel, name, name in shared, False))
                end = _find_end(line, begin)
                first, _, place = line[begin:end].rpartition(", ")
                note = f"cycles::touch({number}, {int(name in shared)}, &{name}[0], 1, 4, "
                before = f"{line[at : found.start()]}tvmf_at(&{name}[0], 0, "
                out += f"{before}{note}({first}) * 4 + {place}))"
                at = end + 1
                continue
            inside = self._write_line(line[found.end() : stop], kernel, names, shared)
            stores = re.match(r"[\])]\s*=[^=]", line[stop:]) is not None
            number = len(self.sites)
            self.sites.append((kernel, name, name in shared, stores))
            kind = int(name in shared) + 2 * stores
            note = f"cycles::touch({number}, {kind}, &{name}[0], sizeof({name}[0]), "
            out += line[at : found.end()] + f"{note}{found[2] or 1}, {inside})"
            at = stop
        return out + line[at:]


def _find_end(line: str, at: int) -> int:
    """Return where the bracket closes that was opened before a place."""
    depth = 1
    while depth:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(line[at], 0)
        at += 1
    return at - 1
