"""Odd command lines: an exit status with one line of why, or what was asked for.

`CHECKS` maps a kind to what draws an input, tries it and says what became of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import fuzz_row_files
import tvm_forest
from fuzz_files import FLOATS, NUMBERS, Phase, memory_folder
from tvm_forest import serving
from tvm_forest.cli import main
from tvm_forest.streams.formats import FORMATS, KINDS

MODELS = (*["model.tvmf"] * 20, "bad.tvmf", "bad.json", "rows.csv", "missing.json", "folder")
ROWS = (*["rows.csv"] * 3, *(f"rows.{form}" for form in fuzz_row_files.FORMATS[1:]))
OUT = ("out.jsonl", "out.jsonl", "out.csv", "out.npy", "-", "folder", "no/out.csv", "rows.csv")
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "info": {
        **{"--support": (), "--why": (), "--stages": (), "-v": ()},
        "--function": ("predict", "per_tree", "x", ""),
        "--target": ("llvm", "simt", "x", "{}"),
    },
    "predict": {
        "-o": OUT,
        "--format": tuple(FORMATS),
        "--output-format": tuple(FORMATS),
        "--keep": ("id", "age", "prediction", "x", "all"),
        "--delimiter": (";", ",", "", '"', "ab"),
        "--decimal": (",", ".", "1"),
        "--missing": ("0", "nan", ""),
        "--bad-rows": ("skip", "refuse"),
        "--rejects": ("bad.csv", "out.jsonl", "x.csv", "no/x.csv", "x.npy"),
        "--kind": tuple(KINDS),
        "--quantiles": ("0.1,0.9", "0.5", "2", "0.5,0.5", "", "x"),
        "--n-jobs": (1, 2, 0, -1, -2),
        "--recompile": (),
        "--target": ("llvm", "cuda", "{}", '{"kind": "llvm"}', "["),
    },
    "compile": {
        "-o": ("out.tvmf", "no/out.tvmf", "folder"),
        "--target": ("llvm", "x", '{"kind": 3}'),
    },
    "export": {"--prefix": ("m_", "1", "", "a b", "é"), "--target": ("simt", "x")},
    "verify": {"--n-rows": (0, 1, -1), "--target": ("llvm", "x")},
    "serve": {
        "--port": (0, -1, 70000, 2**40),
        "--host": ("127.0.0.1", "nowhere.invalid", "", "\0"),
        "--token-file": ("token", "missing", "folder"),
        "--tls": ("token", "missing"),
        "--n-jobs": (1, 0, -5),
        "--max-batch": (1, 0, -1),
        "--max-body-mb": (1, 0, -1, "nan"),
        "--timeout-s": (1, 0, -1, "nan", "inf"),
    },
    "cache": {"--clear": ()},
    "tune": {"--rows": ("rows.npy", "rows.csv", "rows.parquet", "bad.npy", "missing.npy")},
}
TRIED = {"info": 4, "predict": 14, "compile": 2, "export": 2, "verify": 2, "serve": 4}
TRIED |= {"cache": 1, "tune": 3}


@lru_cache
def files() -> dict[str, bytes]:
    """The files of the folder in which commands are given, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.tvmf")
        fuzz_row_files.predictors()[0].save(path)
        model = path.read_bytes()
    found = {f"rows.{form}": fuzz_row_files.sound(0, form) for form in fuzz_row_files.FORMATS}
    found |= {"model.tvmf": model, "bad.tvmf": model[:-9] + b"x" * 9, "bad.json": b'{"learner": 3}'}
    found |= {"token": b"secret", "bad.npy": found["rows.npy"][:99], "bad.csv": b'a,b\n"1,\0\n'}
    return found


def drawn_words(rng: random.Random) -> list[str]:
    """Return the words of a command."""
    command = rng.choices(list(TRIED), list(TRIED.values()))[0]
    words = [command]
    if command != "cache":
        words.append(rng.choice(MODELS))
    if command == "predict":
        words.append(
            rng.choice(
                (*ROWS * 3, "bad.csv", "bad.npy", "missing.csv", "folder", "-", ".", "rows.*")
            )
        )
    if command == "export":
        words.append(rng.choice(("x.so", "x", "no/x.so", "folder.so", "x.dll", "")))
    if command == "verify":
        words += rng.choice(([], ["rows.npy"], ["rows.csv"], ["bad.csv"], ["bad.npy"], ["rows.x"]))
    for option, values in OPTIONS[command].items():
        if rng.random() < 0.2:
            words += [option, *map(str, rng.sample(values, 1) if values else ())]
            if option == "--tls":
                words.append("token")
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        _damage(words, rng)
    return words


def _damage(words: list[str], rng: random.Random) -> None:
    words[:] = words or ["info"]
    at = rng.randrange(1, len(words)) if len(words) > 1 else 0
    choice = rng.random()
    odd = [
        "",
        "-",
        "--",
        "\0",
        "é\udcff",
        "a" * 300,
        "-o",
        "--kind",
        "*",
        "/dev/null",
        "/",
        "~",
        "=",
        "{",
    ]
    if choice < 0.6:
        words[at] = str(rng.choice([*odd, *NUMBERS, *FLOATS]))
    elif choice < 0.75:
        del words[at]
    elif choice < 0.9:
        words.insert(at, rng.choice(words))
    else:
        rng.shuffle(words)


def check_command(rng: random.Random, said: Phase) -> str:
    """Give a command in a folder of its own."""
    words = drawn_words(rng)
    if words[:1] not in [[name] for name in TRIED] or "demo" in words:
        words[:1] = ["info"]
    before = os.getcwd()
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        for name, data in files().items():
            Path(folder, name).write_bytes(data)
        Path(folder, "folder").mkdir()
        os.chdir(folder)
        said("compiling")
        try:
            return _run(words)
        finally:
            os.chdir(before)


def _run(words: list[str]) -> str:
    printed, said = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(contextlib.redirect_stderr(said))
        stack.enter_context(mock.patch.object(serving, "run"))  # it would wait for requests
        stack.enter_context(mock.patch.object(tvm_forest.api, "tune", side_effect=SystemExit(0)))
        stack.enter_context(
            mock.patch.dict(os.environ, TVM_FOREST_CACHE=str(Path("cache").absolute()))
        )
        stack.enter_context(mock.patch.object(sys, "stdin", open(os.devnull)))
        try:
            status = main(words)
        except SystemExit as exit:  # of argparse, or where a search would begin
            return "refused" if exit.code else "taken"
    text = said.getvalue()
    if status:
        assert status == 2 and text.startswith("tvm-forest: ") or status == 1, (status, text)
        assert status == 1 or text.count("\n") < 60, text
        return "refused"
    return _compare(words, printed)


def _compare(words: list[str], printed: Any) -> str:
    """Compare margins, where some were written as JSON of sound rows."""
    if words[0] != "predict" or "out.jsonl" not in words or "predict_margin" not in words:
        return "taken"
    if {"--missing", "rows.*"} & {*words}:  # other rows than those of the files
        return "taken"
    lines = Path("out.jsonl").read_text().splitlines()
    found = np.array([json.loads(line).get("margin", np.nan) for line in lines], np.float32)
    held = fuzz_row_files.columns(0)
    rows = np.array([held[name] for name in fuzz_row_files.NAMES]).T.astype(np.float32)
    expected = fuzz_row_files.predictors()[0].forest.predict_reference(rows).ravel()
    if len(found) == len(expected):
        np.testing.assert_array_equal(found, expected)
        return "equal"
    return "taken"


CHECKS = {"commands": check_command}


def prepare() -> None:
    """Make the files, and import what commands import late."""
    files()
    shutil.rmtree(tempfile.mkdtemp())
    for command in TRIED:
        __import__(f"tvm_forest.cli.{command}")
