"""Tables of the benchmark on a GPU.

takes: results of gpu.py; gives: text.
"""

from __future__ import annotations

from typing import Any

DEFAULT = "ours: default"
FIGURES = ("kernel", "total")
COLUMNS = ("bound", "before", "after", "schedule", "peer", "name", "gain")
HEAD = f"| model | batch | figure | {' | '.join(COLUMNS)} |"


def head(about: dict[str, Any]) -> str:
    """Return the facts of the machine and the head of the table."""
    return (
        f"{about['date']}, {about['gpu']} ({about['architecture']}): copies of "
        f"{about['copy_gb_s']:.0f} GB/s on the GPU, {about['upload_gb_s']:.1f} GB/s to it"
    )


def line_of(record: dict[str, Any]) -> str:
    """Return what the checks say of an engine."""
    kinds = [f"{kind} {record[kind]}" for kind in ("typical", "hard", "wild") if kind in record]
    return f"{record['model']}, {record['engine']}: {record.get('why') or ', '.join(kinds)}"


def row_of(cell: dict[str, Any]) -> str:
    """Return two rows of the table: microseconds on the GPU, and in all.

    bound | default schedule | fastest schedule, its name | fastest peer, its name | how many times
    faster than that the fastest schedule is.
    """
    begin = f"| {cell['model']} | {cell['batch']} |"
    if "why" in cell:
        return f"{begin} | {cell['why']} | | | | | | |"
    return "\n".join(f"{begin} {_figure(cell, figure)} |" for figure in FIGURES)


def _figure(cell: dict[str, Any], figure: str) -> str:
    key = f"{figure}_us"
    found = {name: one for name, one in cell["engines"].items() if key in one}
    times = {
        name: f"{one[key]:.4g}{'*' if figure == 'kernel' and one['host_waits'] else ''}"
        for name, one in found.items()
    }
    ours = [name for name in found if name.startswith("ours")]
    best = min(ours, key=lambda name: found[name][key], default="-")
    peers = [name for name in found if name not in ours]
    peer = min(peers, key=lambda name: found[name][key], default="-")
    both = best in found and peer in found
    gain = f"{found[peer][key] / found[best][key]:.2f}" if both else "-"
    before, after = times.get(DEFAULT, "-"), times.get(best, "-")
    texts = (figure, f"{cell[f'{figure}_bound_us']:.4g}", before, after)
    return " | ".join((*texts, best.removeprefix("ours: "), times.get(peer, "-"), peer, gain))


def whole(results: dict[str, Any]) -> str:
    """Return the table of all models, and why engines have no figures."""
    lines = ["", head(results["about"]), "Microseconds of a call; * holds gaps of the host.", ""]
    lines += [HEAD, "|" + "---|" * (3 + len(COLUMNS))]
    lines += [row_of(cell) for cell in results["cells"]]
    reasons = [line_of(record) for record in results["engines"] if "why" in record]
    for cell in results["cells"]:
        for name, one in cell.get("engines", {}).items():
            for figure in FIGURES:
                if f"{figure}_why" in one:
                    said = f"{cell['model']}, batch {cell['batch']}, {name}, {figure}"
                    reasons.append(f"{said}: {one[f'{figure}_why']}")
    return "\n".join([*lines, "", *dict.fromkeys(reasons)])
