"""What `gpu.speed` has measured on a GPU, as the studies read it.

takes: results.json of the folder of `make bench-gpu`; gives: its facts, times of our schedules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu import report as gpu_report


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results, and what the page says of the machine."""
    given = json.loads(path.read_text(encoding="utf-8"))
    return given, {"machine": given["about"]["gpu"], "date": given["about"]["date"]}


def schedule_times(cell: dict[str, Any], figure: str) -> dict[str, float]:
    """Return microseconds of a call with each of our schedules, by name."""
    found = cell.get("engines", {}).items()
    key, begin = f"{figure}_us", gpu_report.OURS
    return {x.removeprefix(begin): y[key] for x, y in found if x.startswith(begin) and key in y}


def draw_bars(panel: Any, cells: list[dict[str, Any]], title: str) -> None:
    """Draw the field "ratio" of cells, a group of bars for each model."""
    names = list(dict.fromkeys(cell["model"] for cell in cells))
    batches = list(dict.fromkeys(cell["batch"] for cell in cells))
    for k, batch in enumerate(batches):
        own = [cell for cell in cells if cell["batch"] == batch]
        places = [names.index(x["model"]) + 0.8 * k / len(batches) for x in own]
        panel.bar(places, [x["ratio"] for x in own], 0.8 / len(batches), label=f"{batch:,}")
    panel.set_xticks(range(len(names)), names)
    panel.set_title(title)
    panel.legend(title="rows", fontsize=7)
