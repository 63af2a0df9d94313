"""Tables of the benchmark on a GPU.

takes: results of `gpu.speed`; gives: text.
"""

from __future__ import annotations

from typing import Any

OURS = "ours: "
DEFAULT = f"{OURS}default"
ON_CPU = "ours on the CPU"
FIGURES = ("kernel", "device", "host")
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
    """Return a row of the table for each figure, in microseconds.

    bound | default schedule | fastest schedule, its name | fastest peer, its name | how many times
    faster than that the fastest schedule is.
    """
    begin = f"| {cell['model']} | {cell['batch']} |"
    if "why" in cell:
        return f"{begin} | {cell['why']} | | | | | | |"
    return "\n".join(f"{begin} {_figure(cell, figure)} |" for figure in FIGURES)


def best_of(cell: dict[str, Any], figure: str) -> dict[str, Any]:
    """Return microseconds before and after tuning, and of the fastest peer, as far as there are."""
    key = f"{figure}_us"
    found = {name: one[key] for name, one in cell.get("engines", {}).items() if key in one}
    ours = {name: us for name, us in found.items() if name.startswith(OURS)}
    peers = {name: us for name, us in found.items() if name not in ours and name != ON_CPU}
    best, peer = (min(group, key=group.__getitem__, default=None) for group in (ours, peers))
    return {
        "before_us": found.get(DEFAULT),
        "after_us": found.get(best),
        "schedule": best.removeprefix(OURS) if best else None,
        "peer_us": found.get(peer),
        "peer": peer,
    }


def _figure(cell: dict[str, Any], figure: str) -> str:
    best, engines = best_of(cell, figure), cell["engines"]

    def said(name: str | None, us: float | None) -> str:
        if name is None or us is None:
            return "-"
        return f"{us:.4g}{'*' if figure == 'kernel' and engines[name]['host_waits'] else ''}"

    before, after, peer = best["before_us"], best["after_us"], best["peer_us"]
    schedule = best["schedule"]
    gain = f"{peer / after:.2f}" if peer and after else "-"
    times = (said(DEFAULT, before), said(schedule and OURS + schedule, after), schedule or "-")
    bound = f"{cell[f'{figure}_bound_us']:.4g}"
    peers = (said(best["peer"], peer), best["peer"] or "-", gain)
    return " | ".join((figure, bound, *times, *peers))


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
