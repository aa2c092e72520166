"""What ``hpo show NAME --trial T`` prints: parameters, story, traceback and logs of one trial."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from hpo_core.checkpoints.storage import log_path
from hpo_core.cli.output import out, print_json
from hpo_core.home import Home
from hpo_core.model.devices.usage import Usage
from hpo_core.model.errors import HpoError
from hpo_core.model.events import AttemptReported, Entry
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.replay.audit import damage_named
from hpo_core.security.untrusted_text import terminal_text
from hpo_core.study import Study
from hpo_core.views.failure_reasons import rank_named
from hpo_core.views.hop_views import plain_visits, visit_lines
from hpo_core.views.trial_story import attempt_lines, trial_state, trial_story


def print_trial(home: Home, name: str, trial: int, *, at: int | None, as_json: bool) -> None:
    """One trial as of an entry of the journal.

    Raises:
        HpoError: the study has no such entry, or no such trial at that entry.
    """
    source = home.read_journal()
    with damage_named(source, name):
        entries = source.info(name).entries
        if at is not None and at >= entries:
            raise HpoError(f"--at {at}: study {name!r} has entries 0 to {entries - 1}.")
        study = Study.open(name, source, at=at, reading=True)
        if trial >= len(study.state.trials):
            known = f"trials 0 to {len(study.state.trials) - 1}" if study.state.trials else "no trial"
            raise HpoError(f"--trial {trial}: study {name!r} has {known} at that entry.")
        recorded = list(source.entries(name, 0, study.seq))
    reports = list(_reports(recorded, trial))
    story = [*trial_story(study, trial), *attempt_lines(recorded, trial)]
    folder = home.study_folder(name)
    ranks = {report.attempt: rank_named(report.message) for report in reports}
    logs = [
        folder / log_path(trial, attempt, ranks.get(attempt, 0))
        for attempt in range(study.state.trials[trial].attempts)
    ]
    if as_json:
        record = study.state.trials[trial]
        attempts = [_plain(report, folder) for report in reports]
        facts = {"trial": trial, "status": trial_state(study, record), "params": record.params, "story": story}
        facts |= {"visits": visits} if (visits := plain_visits(study.spec, record)) else {}
        print_json(facts | {"attempts": attempts, "logs": [str(path) for path in logs if path.exists()]})
        return
    for line in story:
        out.print(Text(terminal_text(line)), soft_wrap=True)
    for line in visit_lines(study.spec, study.state.trials[trial]):
        out.print(Text(terminal_text(line)), soft_wrap=True)
    ended = [report for report in reports if report.outcome is Outcome.PREEMPTED]  # by us: no failure of its own
    for report in ended:
        out.print(Text(terminal_text(f"attempt {report.attempt} was preempted: {report.message}")), soft_wrap=True)
    failed = [report for report in reports if report.outcome not in RESULTS and report.detail and report not in ended]
    if failed:
        last = failed[-1]
        out.print(Text(f"\nattempt {last.attempt} ended ({last.outcome}) with:", style="bold"))
        detail = terminal_text(last.detail.strip("\n"), lines=True)
        out.print(Text(textwrap.indent(detail, "  ")), soft_wrap=True)  # a line of it must not look like one of ours
        out.print()
    for path in logs:
        missing = "" if path.exists() else " (not on this machine)"
        out.print(Text(f"log: {terminal_text(str(path))}{missing}"), soft_wrap=True)


def _reports(entries: Iterable[Entry], trial: int) -> Iterable[Report]:
    for entry in entries:
        if isinstance(entry.stimulus, AttemptReported) and entry.stimulus.report.trial == trial:
            yield entry.stimulus.report


def _plain(report: Report, folder: Path) -> dict[str, Any]:
    return {
        "attempt": report.attempt,
        "outcome": report.outcome.value,
        "message": report.message,
        "detail": report.detail,
        "usage": msgspec.to_builtins(report.usage) if isinstance(report.usage, Usage) else None,
        "log": str(folder / log_path(report.trial, report.attempt, rank_named(report.message))),
    }
