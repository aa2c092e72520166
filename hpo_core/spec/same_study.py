"""Compares a study that is described again with the one that the journal has."""

from __future__ import annotations

from typing import Any

from hpo_core.model.short_text import shortened
from hpo_core.model.space.parameter import flattened
from hpo_core.spec.sent_functions import names_value, plain_name
from hpo_core.spec.study_spec import StudySpec

_MAY_DIFFER = ("study", "cluster", "data", "pythonpath", "prefect", "tracking", "warm_start")
"""Settings that say where a study runs and is shown, and those that a study fills in when it begins."""


def differing_setting(recorded: StudySpec, given: StudySpec) -> str:
    """The first setting that is another one in the second description, with both values; empty: none.

    Functions by value are the same where they are called alike: a study goes on with the one that it keeps.
    """
    ours, theirs = (flattened(spec.plain()) for spec in (recorded, given))
    for name in dict.fromkeys([*ours, *theirs]):
        before, now = (_compared(one.get(name, "not set")) for one in (ours, theirs))
        if before != now and name.partition(".")[0] not in _MAY_DIFFER:
            return f"{name} is {shortened(str(before))} there and {shortened(str(now))} here"
    return ""


def _compared(value: Any) -> Any:
    return plain_name(value) if isinstance(value, str) and names_value(value) else value
