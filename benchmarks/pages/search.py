"""Put what `search.py` and `sensitivity.py` have found into the page of the CPU's vendor.

    python -m benchmarks pages.search [--records FOLDER]

A table stands between marks, as `pages.cpu` has it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.pages import cpu
from benchmarks.tuning import search, sensitivity
from benchmarks.tuning.searches import RECORDS

PAGES = {"AuthenticAMD": "tuning_amd.md", "GenuineIntel": "tuning_intel.md"}
"""In benchmarks/results."""


def main() -> None:
    """Read results, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS)
    folder = parser.parse_args().records
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    matrices = json.loads((folder / "sensitivity.json").read_text(encoding="utf-8"))
    tables = {
        "machine": found["machine"] + ".",
        "searches": search.table(found["results"]),
        "summary": search.summary(found["results"], folder),
    }
    tables |= {title: sensitivity.text(x, "found for") for title, x in matrices.items()}
    cpu.write(RESULTS / cpu.page_of(PAGES), tables)
