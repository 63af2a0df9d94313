"""The schedules that are used when none is given, and why.

takes: Forest, Target; gives: Schedules by the smallest batch they serve; sentences.

`cpu_rules` and `gpu_rules` name, for each smallest batch, what is tried in order. A batch for which
no rule chooses is served like smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..forest import Forest
from ..schedule import Schedule
from ..schedule_prims.batches import arrange_by_batch, select_hop_schedule
from ..target import Target
from .cpu_rules import BLOCK_BATCHES, CPU_RULES, Rule
from .gpu_rules import GPU_RULES
from .layout_fit import PERMUTE_ABILITY, Fit
from .workload import Workload, new_schedule

__all__ = ["default_schedule", "default_schedules", "explain", "new_schedule"]


def default_schedules(forest: Forest, target: Target) -> dict[int, Schedule]:
    """Return good schedules by the smallest batch that each serves.

    Rows are shared out among threads by the schedules that serve batches of 512 rows and more, and
    by the one that serves batches up to a schedule with blocks of more than 512 rows. The others
    run on one thread, which saves compiling them twice, with threads and without.
    """
    return default_schedules_for(Workload.of(forest, target))


def default_schedules_for(work: Workload) -> dict[int, Schedule]:
    """Return the `default_schedules` of a workload, whose counts may be known already."""
    chosen = arrange_by_batch(_choose(work))
    largest, next_batches = BLOCK_BATCHES[-1], dict(zip(chosen, list(chosen)[1:], strict=False))

    def is_shared_out(smallest: int) -> bool:
        larger = next_batches.get(smallest)
        if larger is None or larger > largest:
            return True
        return any(loop.parallel and loop.step > largest for loop in chosen[larger].loops())

    return arrange_by_batch(
        {k: sch if is_shared_out(k) else sch.without("parallel") for k, sch in chosen.items()}
    )


def default_schedule(forest: Forest, target: Target) -> Schedule:
    """Return the schedule for the largest batches that walks row by row, to write others from."""
    scalar = replace(target, abilities=(target.abilities or frozenset()) - {PERMUTE_ABILITY})
    return select_hop_schedule(_choose(Workload.of(forest, scalar)))


def explain(forest: Forest, target: Target) -> list[str]:
    """Say what `default_schedules` chooses and why, a sentence for each rule that was asked."""
    work = Workload.of(forest, target)
    batches = default_schedules_for(work)
    return [line for smallest in batches for line in _explain_batch(work, smallest)]


def _explain_batch(work: Workload, smallest: int) -> Iterator[str]:
    batch = f"batches of {smallest} row{'s' * (smallest > 1)} and more"
    for rule, (fits, reason) in _ask_rules(work, _rules_for(work)[smallest]):
        yield f"{batch}: {'' if fits else 'not '}{rule.name}: {reason}"


def _choose(work: Workload) -> dict[int, Schedule]:
    """Return what the rules choose, by the smallest batch."""
    last = {k: [*_ask_rules(work, rules)][-1] for k, rules in _rules_for(work).items()}
    return {k: rule.write(work) for k, (rule, fit) in last.items() if fit.fits}


def _ask_rules(work: Workload, rules: list[Rule]) -> Iterator[tuple[Rule, Fit]]:
    """Yield rules with their answers, up to the first that fits."""
    for rule in rules:
        fit = rule.fit(work)
        yield rule, fit
        if fit.fits:
            return


def _rules_for(work: Workload) -> dict[int, list[Rule]]:
    return GPU_RULES if work.target.on_gpu else CPU_RULES
