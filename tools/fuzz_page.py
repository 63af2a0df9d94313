"""The page of fuzzing; as a program, writes docs/fuzzing.md from a run.

python tools/fuzz.py --inputs 1000000 --seed 1 --json build/fuzz.json       # goes on where it ended
python tools/sanitize.py --json build/sanitize.json                         # or: make sanitize
python tools/fuzz_page.py build/fuzz.json build/sanitize.json
"""

from __future__ import annotations

import json
import platform
import sys
import textwrap
from collections import Counter
from pathlib import Path
from string import Template
from typing import Any

from fuzz import DOORS, FAILURES, LIBRARY_SECONDS, LIMITS, MOST_MEMORY, MOST_SECONDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fuzzing.md"
ASKED = {
    "XGBoost files": "XGBoost",
    "LightGBM files": "LightGBM",
    "ONNX files": "onnxruntime",
    "treelite files": "treelite",
    "CatBoost files": "CatBoost",
    "YDF folders": "YDF",
    "fitted estimators": "scikit-learn",
    "saved predictors": "the walk of the stored forest",
    "rows in memory": "the walk, of a plain array",
    "files of rows": "the walk, of rows read by Python, numpy or pandas",
    "commands": "the walk",
    "requests to the server": "the walk, of rows read by Python",
    "schedules": "its own text: it reads back to the same schedule",
    "records of tuning": "its own text",
    "machines": "",
    "profiles": "its own sums",
    "entries of the code cache": "the bytes that were written",
}
"""What accepted inputs of a door are compared with."""
LIBRARY = ("refused by the library", "crash of the library", "hang of the library")

COLUMNS = (
    "door",
    "inputs",
    "refused by us",
    "accepted, equal",
    "accepted, not compared",
    "library refuses, crashes, hangs",
    "faults",
    "compared with",
)
TEXT = Template("""\
# Fuzzing

Whatever comes from outside is either refused by an error of this package that says where and what
is wrong, or means what its library says it means. This page counts how often that was tried with
broken and hostile inputs. `tools/fuzz_page.py` writes it from a run of `tools/fuzz.py` and one of
`tools/sanitize.py`.

## How it is done

An input is drawn from a kind and a seed, so that each can be drawn again, as in
`python tools/fuzz.py --only "json values" 4711`. Kinds that end with "bytes" cut, flip, overwrite,
insert and swap bytes. Kinds that end with "values" know the format: they put infinities, NaN, -1,
2<sup>31</sup>, 2<sup>63</sup>, empty lists, other types, other lengths and swapped entries in the
place of single values, and write a file that is well-formed again, so that it passes the parser.

A forked process tries the inputs, with at most $memory GB of memory beyond what it begins with.
What ends the process is a crash. An answer of ours that takes more than $ours s of wall time is a
hang, and one that takes more than $most s of processor time is too slow. A library that takes more
than $library s of processor time, or ends the process, is counted as such: what it does with a
damaged file is not ours to decide.

Where we and the library both take a model, the margins of hard rows are compared, and every bit
must be equal. One model in some is also compiled and compared with the reference walk.

## What was tried

$count inputs of seed $seed, on $machine, in $hours hours beside other work.
With the calls of exported C below these are **$all inputs in all**. Faults were mended meanwhile,
and each input that had failed was tried again.

$doors

**Crashes $crash, hangs $hang, too slow $slow, foreign exceptions $foreign, wrong answers $wrong.**

A fault is one of these five. What is accepted is not compared where the library refuses the model,
where it has too many columns to draw rows for, or where there is nothing to compare it with.
CatBoost's reader of JSON rounds long numbers wrongly, so its files hold short ones here. A `.cbm`
file is read by CatBoost, and the folder of a YDF model by YDF: a damaged one can end the process in
these libraries, as the column of theirs shows, before this package sees it.

## The exported C

Exported models are compiled from their source packages by $compiler with sanitizers, and called by
a program of C (`tools/sanitized.c`) with

- rows of which every margin is known, in batches of 0 to 600 rows, on 1 to 64 threads;
- rows of any bits, of which a batch must give what its rows give one by one, labels too;
- null pointers, negative and huge numbers of rows, wrong `n_jobs`, odd numbers of names;
- eight threads that call all models at once;
- libraries that are opened, called and closed again and again.

$sanitized

A sanitizer that finds something ends the program, so these lines say that none did. The C code
parses nothing: names and categories are constants of the library, and rows are numbers. The
functions that TVM compiles are not instrumented.

## What was found, and mended

Each has a test in `tests/frontends/test_fuzz_found.py`; that of the C is in
`tests/tools/test_sanitize.py`.

$found
""")

FOUND = (
    "CatBoost files that contradict themselves were accepted, and gave other margins than CatBoost "
    "**without a word**: where the number of a split stands for another border than the split has, "
    "borders do not ascend, columns lie in another order than their features, a statistic of two "
    "classes asks for a second border, a statistic names other features than its table, a "
    "denominator is too large, or `class_to_label` puts classes into another order. All are "
    "refused.",
    "A damaged Arrow file whose texts lie outside of their buffer ended the process in pyarrow. "
    "Batches are checked in full before they are used.",
    "An Arrow file that asks for more memory than there is gave a `MemoryError`.",
    "A `.npy` file with a damaged header gave a `TokenError` of Python's tokenizer, and one with a "
    "length of -1 or `True` a `ValueError` or `TypeError` of numpy.",
    "A CSV file with a field of over 131,072 characters gave a `csv.Error` in `verify` and `tune`.",
    "A `.cbm` file with damaged parameters gave a `JSONDecodeError` or `UnicodeDecodeError`.",
    "A YDF folder that YDF reads, but that is damaged, gave an `IndexError` or a `TypeError`.",
    "A record of tuning whose seconds are a text gave a `TypeError` when the fastest was looked "
    "for.",
    "A saved predictor whose checksum is right, but whose parts are not those of a zip file, gave "
    "a `BadZipFile`, and one without a manifest a `KeyError`.",
    "A description of a machine with an infinite size gave an `OverflowError`.",
    "Exported C functions computed sizes with a number of rows near 2<sup>63</sup>, which "
    "overflow. Such a number is refused.",
)


def describe_doors(counts: dict[str, Counter[str]]) -> list[str]:
    """Return a row of the table for each door, and one for all."""
    rows, total = [], Counter[str]()
    for door, kinds in DOORS.items():
        own = sum((counts.get(kind, Counter()) for kind in kinds), Counter[str]())
        rows.append(_row(door, own, ASKED[door]))
        total += own
    return [*rows, _row("**all**", total, "")]


def _head(names: tuple[str, ...]) -> list[str]:
    sides = ("---" if name in ("door", "sanitizer", "compared with") else "---:" for name in names)
    return [f"| {' | '.join(names)} |", f"|{'|'.join(sides)}|"]


def _row(name: str, counts: Counter[str], asked: str) -> str:
    theirs = "{:,}, {:,}, {:,}".format(*(counts[word] for word in LIBRARY))
    numbers = (counts["refused"], counts["equal"], counts["taken"])
    shown = " | ".join(f"{n:,}" for n in (sum(counts.values()), *numbers))
    faults = sum(counts[word] for word in FAILURES)
    return f"| {name} | {shown} | {theirs} | {faults} | {asked} |"


def describe_sanitized(runs: dict[str, dict[str, int]]) -> list[str]:
    """Return a row of the table for each sanitizer."""
    names = ("models", "calls", "rows", "equal", "refused", "wrong", "loads")
    head = _head(("sanitizer", *names))
    return head + [
        f"| {kind} | " + " | ".join(f"{run[name]:,}" for name in names) + " |"
        for kind, run in runs.items()
    ]


def processor() -> str:
    """Name the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def write(fuzzed: dict[str, Any], sanitized: dict[str, Any]) -> str:
    """Return the text of the page."""
    counts = {kind: Counter(found) for kind, found in fuzzed["counts"].items()}
    total = sum(counts.values(), Counter[str]())
    calls = sum(run["calls"] for run in sanitized["runs"].values())
    return TEXT.substitute(
        {word: total[word] for word in FAILURES},
        memory=MOST_MEMORY >> 30,
        ours=f"{LIMITS['ours']:g}",
        most=f"{MOST_SECONDS:g}",
        library=LIBRARY_SECONDS,
        count=f"{total.total():,}",
        all=f"{total.total() + calls:,}",
        hours=f"{fuzzed['seconds'] / 3600:.1f}",
        seed=fuzzed["seed"],
        machine=f"one core of {processor()}, Python {platform.python_version()}",
        doors="\n".join([*_head(COLUMNS), *describe_doors(counts)]),
        compiler=sanitized["compiler"],
        sanitized="\n".join(describe_sanitized(sanitized["runs"])),
        found="\n".join(
            textwrap.fill(f"- {text}", 100, subsequent_indent="  ", break_on_hyphens=False)
            for text in FOUND
        ),
    )


if __name__ == "__main__":
    fuzzed, sanitized = (json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:3])
    PAGE.write_text(write(fuzzed, sanitized), encoding="utf-8")
