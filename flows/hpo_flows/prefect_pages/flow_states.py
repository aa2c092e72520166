"""Tags, parameters and final states of a study's flow run."""

from __future__ import annotations

import json
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from hpo_core.cli.output import best_line
from hpo_core.model.short_text import cut
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.spec.sent_functions import short_name
from hpo_core.study import Study
from hpo_core.views.failure_reasons import failed_words
from hpo_core.views.rungs import halt_words

_MOST_SHOWN = 20_000
"""Most characters of a setting among the parameters of a flow run."""


def tags_of(spec: StudySpec) -> list[str]:
    """Tags of a study's flow run: a list of runs is filtered by them."""
    return ["hpo", spec.study, spec.search.method, *([f"pool {spec.pool_name}"] if spec.pool_name else [])]


def shown_parameters(spec: StudySpec) -> dict[str, Any]:
    """Parameters of the flow run of a study that no form describes: its name, and what of its file is not as usual.

    Values of thousands of entries (a record, partitions) are cut: a Prefect server takes half a megabyte.
    """
    usual = {name: field.get_default(call_default_factory=True) for name, field in StudySpec.model_fields.items()}
    said = {name: value for name, value in spec.plain().items() if getattr(spec, name) != usual[name]}
    found: dict[str, Any] = {"name": said.pop("study")}
    for name, value in said.items():
        if isinstance(value, str):
            value = short_name(value)  # of a function that was sent by value
        text = json.dumps(value)
        found[name] = value if len(text) <= _MOST_SHOWN else cut(text)
    return found


def end_state(study: Study, cure: str) -> State[Any]:
    """The final state of a flow run whose study ended by itself.

    Args:
        cure: what to do about a study that gave up, or has no result.
    """
    if why := failed_words(study, cure):
        return failed(why)
    halted = None if study.finished else study.state.halted
    words = "" if halted is None else f"{halt_words(study.spec, halted)}; "
    return Completed(message=f"{words}best {best_line(study)}, {study.state.completed_jobs:,} jobs")


def failed(message: str) -> State[Any]:
    return Failed(message=masked(terminal_text(message, lines=True)))
