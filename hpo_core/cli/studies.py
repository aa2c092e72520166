"""Commands that read a journal, or write to it."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from hpo_core.checkpoints.storage import log_path
from hpo_core.cli.before_study import MoreParams, ParamsOption
from hpo_core.home import Home
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import HpoError, JournalUnavailableError, StudyBusyError
from hpo_core.model.events import AttemptReported, Entry
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.replay.audit import damage_named
from hpo_core.security.untrusted_text import json_text, terminal_text
from hpo_core.study import Study
from hpo_core.terminal.output import (
    AsJson,
    Force,
    HomeOption,
    JournalOption,
    Name,
    cell_text,
    err,
    more_columns,
    out,
    print_json,
    print_rows,
    print_status,
    print_study,
    status_word,
    study_at,
)
from hpo_core.views.failure_reasons import rank_named
from hpo_core.views.hop_views import visit_lines
from hpo_core.views.states import attempt_lines, trial_state, trial_story


def print_trial(home: Home, name: str, trial: int, *, at: int | None, as_json: bool) -> None:
    """One trial as of an entry of the journal.

    Raises:
        HpoError: the study has no such entry, or no such trial at it.
    """
    source = home.read_journal()
    with damage_named(source, name):
        study, _ = study_at(source, name, at)
        if trial >= len(study.state.trials):
            known = f"trials 0 to {len(study.state.trials) - 1}" if study.state.trials else "no trial"
            raise HpoError(f"--trial {trial}: study {name!r} has {known}{'' if at is None else f' at entry {at}'}.")
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
        visits = [msgspec.to_builtins(visit) for result in record.results for visit in result.visits or ()]
        facts |= {"visits": visits} if visits else {}
        print_json(facts | {"attempts": attempts, "logs": [str(path) for path in logs if path.exists()]})
        return
    for line in story:
        out.say(line)
    for line in visit_lines(study.spec, study.state.trials[trial]):
        out.say(line)
    ended = [report for report in reports if report.outcome is Outcome.PREEMPTED]  # by us: no failure of its own
    for report in ended:
        out.say(f"attempt {report.attempt} was preempted: {report.message}")
    failed = [report for report in reports if report.outcome not in RESULTS and report.detail and report not in ended]
    if failed:
        last = failed[-1]
        out.print(Text(f"\nattempt {last.attempt} ended ({last.outcome}) with:", style="bold"))
        detail = terminal_text(last.detail.strip("\n"), lines=True)
        out.print(Text(textwrap.indent(detail, "  ")), soft_wrap=True)  # a line of it must not look like one of ours
        out.print()
    for path in logs:
        missing = "" if path.exists() else " (not on this machine)"
        out.say(f"log: {path}{missing}")


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


AUDIT_DIFFERS = 8


def list_studies(home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """All studies of the journal."""
    from hpo_core.views.summary import summarize

    source = Home(home, journal).read_journal()
    known = source.studies()
    more = more_columns(source) if known else {}  # a home without studies has no database
    titles = list(dict.fromkeys(title for columns in more.values() for title in columns))
    rows = []
    for info in known:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
        try:
            study = Study.open(info.name, source, reading=True)
        except JournalUnavailableError:
            raise
        except HpoError as error:  # the others are listed all the same
            err.say(error, style="red", lines=True)
            gaps = dict.fromkeys(["method", "status", "trials", "jobs", "best", "metric"])
            rows.append({"study": info.name} | gaps | {"status": "damaged", "created": created} | dict.fromkeys(titles))
            continue
        summary = summarize(study)
        rows.append(
            summary.plain("study", "method", "status", "trials", "jobs")
            | {
                "status": status_word(study, info),
                "best": None if summary.best is None else summary.best.value,
                "metric": summary.metric,
                "created": created,
            }
            | dict.fromkeys(titles)
            | more.get(info.name, {})
        )
    if as_json:
        print_json(rows)
    elif rows:
        for row in rows:
            metric, best = row.pop("metric"), row["best"]
            row["best"] = "" if best is None else f"{metric} {cell_text(best)}"
        print_rows(out, rows)
    else:
        out.say(f"No study yet in {source}. `hpo tune STUDY.yaml` makes one.")


def status(name: Name, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """Where a study stands now, in a few lines."""
    print_status(Home(home, journal), name, as_json)


def show(
    name: Name,
    at: Annotated[int | None, typer.Option("--at", min=0, help="As of this journal entry (default: the last).")] = None,
    trial: Annotated[
        int | None, typer.Option("--trial", min=0, help="One trial: parameters, story, traceback, logs.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Print settings, rungs and best trial of a study, now or at an earlier entry of its journal."""
    if trial is not None:
        print_trial(Home(home, journal), name, trial, at=at, as_json=as_json)
    else:
        print_study(Home(home, journal), name, at, as_json)


def audit_study(name: Name, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """Make every decision again from the recorded results, and compare it with the record."""
    from hpo_core.replay.audit import audit

    source = Home(home, journal).read_journal()
    report = audit(source.entries(name))
    if as_json:
        print_json(
            {
                "entries": report.entries,
                "clean": report.clean,
                "sampler_checked": report.sampler_checked,
                "findings": [str(finding) for finding in report.findings],
            }
        )
    else:
        drawn = "parameters drawn again too" if report.sampler_checked else "parameters taken from the record"
        if report.clean:
            out.say(f"clean: {report.entries} entries decided again, all as recorded ({drawn})")
        for finding in report.findings:
            out.say(finding)
    if not report.clean:
        raise typer.Exit(AUDIT_DIFFERS)


def export(name: Name, home: HomeOption = None, journal: JournalOption = None) -> None:
    """Write the journal as JSON lines, one entry a line."""
    from hpo_core.journal.codec import encode_entry

    for entry in Home(home, journal).read_journal().entries(name):
        sys.stdout.write(json_text(encode_entry(entry)) + "\n")


def abandon(
    name: Name,
    trial: Annotated[int, typer.Option("--trial", min=0, help="Number of the trial.")],
    force: Force = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Give up one trial of a study that no controller runs; `hpo resume`, or `extend`, goes on without it."""
    with _claimed(Home(home, journal), name, force=force) as study:
        study.abandon(trial)
    for line in trial_story(study, trial)[-2:]:
        out.say(line)
    if study.finished:
        out.say(f"{name} had finished: only `hpo extend {name} --configs N` goes on, without this trial", "yellow")


@contextmanager
def _claimed(home: Home, name: str, *, force: bool = False) -> Iterator[Study]:
    """A study that this command drives for a moment.

    Raises:
        StudyBusyError: another controller drives it.
    """
    from hpo_core.journal.sql import current_owner

    source = home.read_journal()
    try:
        epoch = source.claim(name, current_owner(), force=force)
    except StudyBusyError as error:
        raise StudyBusyError(
            f"{error} Interrupted with Ctrl-C, it loses nothing: then this command, then `hpo resume {name}`."
        ) from None
    try:
        study = Study.open(name, source, reading=True)
        study.epoch = epoch
        yield study
    finally:
        source.release(name, epoch)


def enqueue(
    name: Name,
    more_params: MoreParams = None,
    params: ParamsOption = None,
    skip_if_exists: Annotated[
        bool, typer.Option("--skip-if-exists", help="Do nothing where a trial has these values already.")
    ] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Have a configuration tried next in a study that no controller runs; the sampler adds what is left out."""
    from hpo_core.execution.in_process import parse_params, read_params
    from hpo_core.study.decider import checked_configuration

    place = Home(home, journal)
    source = place.read_journal()
    study = Study.open(name, source, reading=True)
    texts = parse_params([*(params or ()), *(more_params or ())])
    if not texts:
        raise HpoError(f"hpo enqueue {name}: give at least one value, as --params lr=0.01.")
    given = checked_configuration(study.spec, read_params(study.spec.search_space(), texts))
    with _claimed(place, name) as study:
        study.enqueue(given, skip_if_exists=skip_if_exists)
    out.say(f"enqueued in {name}: {json.dumps(given)}")


def schedule(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Trial whose schedule is written; default: the best.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Print as JSON the parameters that led to a trial, step by step, for a plain training script."""
    from hpo_core.views.lineage import read_lineage

    record = Home(home, journal).read_journal()
    with damage_named(record, name):
        lineage, resource = read_lineage(record.entries(name)), None
        if trial is None:
            best = Study.open(name, record, reading=True).best
            if best is None:
                raise HpoError(
                    f"Study {name!r} has no finite, feasible result yet; name a trial with --trial, or wait for one."
                )
            trial, resource = best.trial, best.resource
        found = lineage.schedule(trial, resource)
    print_json({"study": name, "segments": msgspec.to_builtins(found)})


def import_study(
    file: Annotated[
        Path,
        typer.Argument(help="Its journal: provenance/journal.jsonl.gz of its run in MLflow, or what hpo export wrote."),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Another name than the study had.")] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option("--code", help="Folder to import its training function from; again for several; default: here."),
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Restore a study from a copy of its journal."""
    from hpo_core.replay.restored_study import restore_study

    place = Home(home, journal)
    folders = [str(folder.resolve()) for folder in code or [Path()]]
    found = restore_study(place, file, name=name, code=folders)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for line in found.lines():
        out.say(line)
