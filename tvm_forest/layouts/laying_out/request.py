"""A build request: a model, schedules, a target, and the outputs to compile.

takes: Forest, schedules, Target; gives: BuildRequest. Needs no TVM, so a process that finds the
code in the cache does not import it.
"""

from __future__ import annotations

from ...forest import Forest
from ...forest.contributions import ContributionTables
from ...forest.rewrites.canonical_form import canonicalize
from ...runtime.results import SUMS, Output, check_forest
from ...schedule_prims import Schedule
from ...schedule_prims.batches import Edited, Schedules, arrange_by_batch
from ...schedule_prims.fitting import check_additions, check_device, check_exact, check_fit
from ...system.process.locks import cached_property
from ...system.values import dataclass, replace
from ...target import Target


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """A request to compile a model, made and checked once, by `of` and `with_schedules`.

    Attributes:
        forest: the model in canonical form.
        target: the machine to compile for.
        schedules: the schedule by smallest batch size, see `arrange_by_batch`; empty until the
            defaults are chosen, which is skipped if the cache has them.
        outputs: the kinds of output that functions compute.
        origin: the model as the caller passed it.
        given: the schedules as the user passed them, some of which may be functions that make a
            schedule for a model; None for the defaults.
        known_signature: signature of the model if it is known, for example from the cache, since
            computing that of a large model takes long; "" otherwise.
    """

    forest: Forest
    target: Target
    schedules: dict[int, Schedule]
    outputs: tuple[Output, ...]
    origin: Forest
    known_signature: str
    given: Edited | None = None

    @classmethod
    def of(
        cls,
        forest: Forest,
        schedule: Schedules | None,
        target: Target,
        *,
        outputs: tuple[Output, ...] = (SUMS,),
        exact: bool = False,
        signature: str = "",
    ) -> BuildRequest:
        """Convert a model to canonical form, and check its schedules.

        Args:
            forest: the model in any form.
            schedule: one for all batches or several, made for `canonicalize(forest)`; None for the
                defaults, which are set later by `with_schedules`.
            target, outputs: see the attributes.
            exact: refuse a schedule that adds leaves in another order than the model.
            signature: see `known_signature`.

        Raises:
            UnsupportedModel: the model cannot be compiled.
            ScheduleError: see `with_schedules`, or one is not exact.
        """
        canonical = canonicalize(forest)
        check_forest(canonical)
        schedules = {} if schedule is None else arrange_by_batch(schedule)
        request = cls(canonical, target, {}, outputs, forest, signature).with_schedules(schedules)
        for sch in dict.fromkeys(schedules.values()) if exact else ():
            check_exact(sch)
        return request

    def with_schedules(self, schedules: dict[int, Schedule]) -> BuildRequest:
        """Return the same request with these schedules, after checking them.

        Raises:
            ScheduleError: one is for another model, or adds partial sums of a minimum or maximum.
        """
        for sch in dict.fromkeys(schedules.values()):
            check_fit("build", self.forest, sch)
            check_additions(self.forest.aggregate, sch)
        return replace(self, schedules=schedules)

    def check_machine(self) -> None:
        """Refuse schedules that the target cannot run; they may still be inspected.

        Raises:
            ScheduleError: one is for another kind of machine, see `fitting.check_device`.
        """
        for sch in dict.fromkeys(self.schedules.values()):
            check_device(sch, self.target)

    def settled(self) -> BuildRequest:
        """Return the same request without a reference to the original model, to free its memory."""
        same = self.origin is self.forest
        return self if same else replace(self, origin=self.forest, known_signature=self.signature)

    def with_outputs(self, *outputs: Output) -> BuildRequest:
        """Return the same request for other outputs."""
        return replace(self, outputs=outputs)

    @cached_property
    def tables(self) -> ContributionTables:
        """The tables from which SHAP values are computed.

        Raises:
            UnsupportedModel: see `ContributionTables`.
        """
        return ContributionTables(self.forest)

    @cached_property
    def signature(self) -> str:
        """Hex digest of everything that affects a prediction, see `Forest.signature`."""
        return self.known_signature or self.origin.signature
