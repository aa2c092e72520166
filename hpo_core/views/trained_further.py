"""What became of a trial that was to be trained beyond the search."""

from __future__ import annotations

import msgspec

from hpo_core.study import Study
from hpo_core.views.formatting import number


class Extension(msgspec.Struct, frozen=True):
    """A trial, its target, and how it ended."""

    trial: int
    to: int
    reached: bool
    value: float | None
    """The metric there; None where it was not reached or is not finite."""
    words: str
    """The same as a sentence."""


def extension_of(study: Study, number_of_trial: int, to: int) -> Extension:
    """Whether a trial was trained to ``to`` units, and what came of it."""
    trial = study.state.trials[number_of_trial]
    result = next((r for r in reversed(trial.further) if r.resource >= to), None)
    value = None if result is None or result.loss is None else study.metric_value(result.loss)
    if result is not None:
        shown = "not finite" if value is None else number(value, 5)
        words = f"trial {trial.number} trained further, to {result.resource}: {study.spec.metric.name} = {shown}"
    elif trial.number in study.state.extended:
        halted = study.state.halted
        why = f" ({halted.reason})" if halted is not None and study.state.further_held else ""
        words = (
            f"Study {study.name!r}, trial {trial.number} is not trained to {to} yet{why}. Mend that, then "
            f"`hpo extend {study.name} --trial {trial.number} --to {to}` goes on."
        )
    else:
        why = trial.given_up[-1].reason if trial.given_up else trial.status
        words = f"Study {study.name!r}, trial {trial.number} was not trained to {to}: {why}"
    return Extension(trial.number, to, result is not None, value, words)
