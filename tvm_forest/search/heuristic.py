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
from ..schedule_prims.batches import by_batch, walked
from ..target import Target
from .cpu_rules import BLOCK_BATCHES, CPU_RULES, Choice, Rule
from .gpu_rules import GPU_RULES
from .layout_fit import PERMUTE_ABILITY
from .workload import Workload, new_schedule

__all__ = ["default_schedule", "default_schedules", "explain", "new_schedule"]


def default_schedules(forest: Forest, target: Target) -> dict[int, Schedule]:
    """Return good schedules by the smallest batch that each serves.

    Threads are for schedules that serve 512 rows and more, which saves the twins of the others, or
    whose blocks two threads share out where larger ones serve.
    """
    return default_schedules_for(Workload.of(forest, target))


def default_schedules_for(work: Workload) -> dict[int, Schedule]:
    """Return the same for a model and machine whose counts may be known already."""
    found = by_batch(_choose(work))
    most, next_batches = BLOCK_BATCHES[-1], dict(zip(found, list(found)[1:], strict=False))

    def is_shared_out(smallest: int) -> bool:
        larger = next_batches.get(smallest)
        if larger is None or larger > most:
            return True
        return any(loop.parallel and loop.step > most for loop in found[larger].loops())

    return by_batch(
        {k: sch if is_shared_out(k) else sch.without("parallel") for k, sch in found.items()}
    )


def default_schedule(forest: Forest, target: Target) -> Schedule:
    """Return the schedule for the largest batches that walks row by row, to write others from."""
    scalar = replace(target, abilities=(target.abilities or frozenset()) - {PERMUTE_ABILITY})
    return walked(_choose(Workload.of(forest, scalar)))


def explain(forest: Forest, target: Target) -> list[str]:
    """Say what `default_schedules` chooses and why, a sentence for each rule that was asked."""
    work = Workload.of(forest, target)
    batches = default_schedules_for(work)
    return [line for smallest in batches for line in _explain_batch(work, smallest)]


def _explain_batch(work: Workload, smallest: int) -> Iterator[str]:
    batch = f"batches of {smallest} row{'s' * (smallest > 1)} and more"
    for rule, answer in _ask_rules(work, smallest):
        if isinstance(answer, Choice):
            yield f"{batch}: {rule.name}: {answer.reason}"
        else:
            yield f"{batch}: not {rule.name}: {answer}"


def _choose(work: Workload) -> dict[int, Schedule]:
    """Return what the rules choose, by the smallest batch."""
    answers = {smallest: [*_ask_rules(work, smallest)][-1][1] for smallest in _rules_for(work)}
    return {k: answer.schedule for k, answer in answers.items() if isinstance(answer, Choice)}


def _ask_rules(work: Workload, smallest: int) -> Iterator[tuple[Rule, Choice | str]]:
    """Yield the rules for a batch with their answers, up to the first that chooses."""
    for rule in _rules_for(work)[smallest]:
        answer = rule.choose(work)
        yield rule, answer
        if isinstance(answer, Choice):
            return


def _rules_for(work: Workload) -> dict[int, list[Rule]]:
    return GPU_RULES if work.target.on_gpu else CPU_RULES
