"""Sizes of exported Relax modules, and of the files that a process needs to run them.

    python -m benchmarks features.relax_sizes [--models airline year] [--page docs/relax.md]

A module takes a softmax of margins. It is exported for every x86-64 CPU without its forest, then
with it, linked and legalised. With `--page`, the tables of the page are written anew.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

import tvm_forest
import tvm_forest.relax
from benchmarks import models
from benchmarks.features.relax_vm import make_module

BASELINE = {"kind": "llvm", "mcpu": "x86-64"}
MARK = re.compile(r"(<!-- figures: relax_sizes -->\n).*?(<!-- end -->)", re.DOTALL)


def make_softmax(forest: tvm_forest.Forest, with_forest: bool = True) -> tvm.IRModule:
    """Return a module whose `main` gives the softmax of margins, or of the rows themselves."""

    def compute(bb: relax.BlockBuilder, rows: Any) -> Any:
        margin = bb.emit(tvm_forest.relax.predict(rows, forest, "margin")) if with_forest else rows
        return relax.op.nn.softmax(margin)

    return make_module(forest, compute)


def measure(mod: tvm.IRModule) -> int:
    """Return the bytes of an exported module."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "module.so")
        tvm.compile(mod, tvm.target.Target(BASELINE)).export_library(str(file))
        return file.stat().st_size


def describe_model(name: str, cache: Path) -> str:
    """Return the line of a model."""
    model = models.get(name, cache)
    forest = tvm_forest.load(model.load() if model.library == "scikit-learn" else model.path)
    mod = make_softmax(forest)
    linked = tvm_forest.relax.LinkForests(BASELINE)(mod)
    sizes = [measure(x) for x in (make_softmax(forest, with_forest=False), linked, mod)]
    shown = " | ".join(f"{size / 1000:,.0f}" for size in sizes)
    return f"| {name}, {forest.n_trees:,} trees, {forest.n_nodes:,} nodes | {shown} |"


def describe_files() -> list[str]:
    """Return the lines of what is loaded beside a module; and of what is not."""
    runtime = Path(tvm.__file__).parent / "lib"
    files = [Path(tvm_ffi.__file__).parent / "lib" / "libtvm_ffi.so"]
    files += [runtime / "libtvm_runtime.so", runtime / "libtvm_compiler.so"]
    needed = ("always", "always", "no")
    return [
        f"| `{file.name}` | {file.stat().st_size / 1e6:.1f} | {word} |"
        for file, word in zip(files, needed, strict=True)
    ]


def main() -> None:
    """Print two tables, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["airline", "year"])
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    parser.add_argument("--page", type=Path, help="file to write the tables into")
    chosen = parser.parse_args()
    lines = [
        f"Exported modules in kB, x86-64, TVM {tvm.__version__}:\n",
        "| model | no forest | linked | legalised |",
        "|---|---:|---:|---:|",
        *(describe_model(name, chosen.cache) for name in chosen.models),
        "\n| file | MB | needed where a module is loaded |",
        "|---|---:|---|",
        *describe_files(),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if chosen.page is not None:
        page = chosen.page.read_text(encoding="utf-8")
        found = MARK.sub(lambda match: match[1] + text + match[2], page)
        chosen.page.write_text(found, encoding="utf-8")
