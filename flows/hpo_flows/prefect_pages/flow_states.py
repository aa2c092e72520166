"""States, names and parameters of a study's flow run, and the line with which its log begins where it failed."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from hpo_core.model.short_text import cut
from hpo_core.security.masking import masked
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.spec import StudySpec
from hpo_core.spec.sent_functions import short_name
from hpo_core.study import Study
from hpo_core.terminal.output import best_line
from hpo_core.views.failure_reasons import failed_words
from hpo_core.views.rungs import halt_words

_LINE_LENGTH = 100_000
"""Most characters of a line."""
_MOST_SHOWN = 20_000
"""Most characters of a setting among the parameters of a flow run."""
log = logging.getLogger("hpo.prefect")


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
    """The state Failed of the present flow run, whose log begins with these words."""
    words = masked(terminal_text(message, lines=True))
    tell_first(words)
    return Failed(message=words)


def tell_first(reason: str) -> None:
    """Have the log of the present flow run begin with why it failed.

    A run's page opens with its log, the oldest line first; the reason stood below all others, and in the state's
    message, which is a tab away. The line has the time at which the process began, and says when it was written.
    """
    if flow_run.id is None:
        return
    began = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    words = f"Failed, at {datetime.now(UTC):%H:%M:%S} UTC: {reason}"
    try:
        with get_client(sync_client=True) as client:
            client.create_logs([log_line(UUID(flow_run.id), logging.ERROR, words, began)])
    except Exception as error:  # the state has the reason
        log.debug("the reason at the top of the log: %s", error)


def log_line(flow_run: UUID, level: int, words: str, when: datetime) -> LogCreate:
    timestamp: Any = when
    return LogCreate(
        name="hpo",
        level=level,
        message=masked(words)[:_LINE_LENGTH],
        timestamp=timestamp,
        flow_run_id=flow_run,
    )
