"""The names of rungs, and sentences about ceilings, stops and halts, as people read them."""

from __future__ import annotations

from hpo_core.model.events import CeilingRaised, StudyHalted, TrialStopped
from hpo_core.model.stage import FURTHER
from hpo_core.spec import StudySpec
from hpo_core.views.formatting import listed

Place = tuple[int | None, int]
"""A rung: (bracket, or None where all brackets share their rungs; place in its ladder)."""


class RungNames:
    """The place and the name of each rung of a study; the bracket is named only where there are several.

    Where brackets share their rungs, a job of bracket ``b`` and rung ``k`` stands at rung ``b + k`` of the one
    ladder, for bracket ``b`` enters it there.
    """

    def __init__(self, spec: StudySpec) -> None:
        outline = spec.search.outline()
        self.shared = outline.shared_rungs
        self.several = outline.several_brackets

    def place(self, bracket: int, rung: int) -> Place:
        """(bracket, or None where rungs are shared; place in its ladder)."""
        return (None, bracket + rung) if self.shared and rung != FURTHER else (bracket, rung)

    def label(self, bracket: int, rung: int) -> str:
        """``rung 2``, or ``rung 2 of bracket 1``, or ``trained further`` beyond the search."""
        if rung == FURTHER:
            return "trained further"
        own, place = self.place(bracket, rung)
        named = own is not None and (self.several or own > 0)  # an extended study may get its second bracket late
        return f"rung {place} of bracket {own}" if named else f"rung {place}"

    def stop_line(self, event: TrialStopped) -> str:
        """``stopped at rung 1 (place 5 of 12)``."""
        return f"stopped at {self.label(event.bracket, event.rung)} (place {event.rank} of {event.results})"

    def ceiling_line(self, event: CeilingRaised) -> str:
        """Which rung opened, and what was not stable."""
        rung, near = event.rung, event.tolerance
        equal = f"losses no more than {near:.3g} apart count as equal" if near else "no two losses counted as equal"
        return (
            f"rung {rung} (trained to {event.level:,}) opened, for more training had changed the order: of the trials "
            f"at rung {rung - 1}, trial {event.trial} came to place {event.place}, where rung {rung - 2} had "
            f"{_trials(event.expected)} ({equal})"
        )


def halt_words(spec: StudySpec, halted: StudyHalted) -> str:
    """Why a study halted, and what a resume does; the reason alone where no rule of the study did it."""
    if not halted.rule:
        return halted.reason
    stop = spec.stop
    after = {
        "total_resource": f"grants {stop.total_resource:,} more" if stop.total_resource else "",
        "seconds": f"drives it for {stop.seconds:g} seconds more" if stop.seconds else "",
        "target": "goes on for a better one",
    }[halted.rule]
    return f"stop rule met: {halted.reason}; a resume {after}"


def _trials(numbers: tuple[int, ...], most: int = 6) -> str:
    if len(numbers) == 1:
        return f"trial {numbers[0]}"
    return f"one of the trials {listed(numbers, most)}"
