"""Reading the assembly of AMD's GPUs: is everything in shared memory before threads meet?"""

from __future__ import annotations

import re

LABEL = re.compile(r"^([.\w]+):")


def unwaited(assembly: str) -> list[str]:
    """Return the barriers that a thread can reach while its shared memory is still being written.

    All paths are followed. `ds_` instructions work on by themselves until the thread waits for
    their counter, lgkmcnt.
    """
    lines = [line.partition(";")[0].strip() for line in assembly.splitlines()]
    places = {found.group(1): at for at, line in enumerate(lines) if (found := LABEL.match(line))}
    starts = [at for at, line in enumerate(lines) if re.match(r"\w+_kernel(_\d+)?:", line)]
    todo, seen, wrong = [(at, False) for at in starts], set(), []
    while todo:
        at, pending = todo.pop()
        if (at, pending) in seen or at >= len(lines):
            continue
        seen.add((at, pending))
        operation, _, operands = lines[at].partition(" ")
        if operation == "s_barrier" and pending:
            wrong.append(f"line {at + 1}: {' / '.join(lines[at - 3 : at + 1])}")
        pending = _pending(operation, operands, pending)
        if operation.startswith(("s_cbranch", "s_branch")):
            todo.append((places[operands.strip()], pending))
        if operation not in ("s_branch", "s_endpgm"):
            todo.append((at + 1, pending))
    return wrong


def _pending(operation: str, operands: str, before: bool) -> bool:
    if operation.startswith("ds_"):
        return True
    waits = operation == "s_waitcnt" and ("lgkmcnt(0)" in operands or operands.strip() == "0")
    return before and not waits
