"""Commands that read a journal, or write one entry to it: list, status, show, audit, export, abandon."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hpo_core.cli.options import AsJson, Force, HomeOption, JournalOption, Name
from hpo_core.cli.output import err, out, print_json, print_status, print_study, status_word
from hpo_core.cli.row_table import cell_text, print_rows
from hpo_core.cli.trial_page import print_trial
from hpo_core.home import Home
from hpo_core.model.errors import HpoError, JournalUnavailableError
from hpo_core.security.untrusted_text import json_text

if TYPE_CHECKING:
    from hpo_core.pool.words import Standing

AUDIT_DIFFERS = 8


def list_studies(home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """All studies of the journal."""
    from hpo_core.journal.sql import is_alive
    from hpo_core.pool.store import live_rows
    from hpo_core.pool.words import standings
    from hpo_core.study import Study
    from hpo_core.views.summary import summarize

    source = Home(home, journal).read_journal()
    pools = standings(live_rows(source, is_alive))
    rows = []
    for info in source.studies():
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
        try:
            study = Study.open(info.name, source, reading=True)
        except JournalUnavailableError:
            raise
        except HpoError as error:  # the others are listed all the same
            err.print(Text(str(error), style="red"), soft_wrap=True)
            gaps = dict.fromkeys(["method", "status", "trials", "jobs", "best", "metric"])
            rows.append({"study": info.name} | gaps | {"status": "damaged", "created": created} | _slots(None, pools))
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
            | _slots(pools.get(info.name), pools)
        )
    if as_json:
        print_json(rows)
    elif rows:
        shown = [{**row, "best": _best_cell(row)} for row in rows]
        print_rows(out, [{title: cell for title, cell in row.items() if title != "metric"} for row in shown])
    else:
        out.print("No study yet. `hpo tune STUDY.yaml` makes one.")


def _slots(standing: Standing | None, pools: Mapping[str, Standing]) -> dict[str, Any]:
    """Columns about slots that are shared, where any study shares some now."""
    if not pools:
        return {}
    if standing is None:
        return dict.fromkeys(["pool", "share", "used", "demand", "waits"])
    waits = f"{standing.waited:.0f} s" if standing.held < standing.share else ""
    return {
        "pool": standing.pool,
        "share": f"{standing.share}/{standing.slots}",
        "used": standing.held,
        "demand": standing.demand,
        "waits": waits,
    }


def _best_cell(row: dict[str, Any]) -> str:
    return "" if row["best"] is None else f"{row['metric']} {cell_text(row['best'])}"


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
    """All about a study as of any entry of its journal."""
    if trial is not None:
        print_trial(Home(home, journal), name, trial, at=at, as_json=as_json)
    else:
        print_study(Home(home, journal), name, at, as_json)


def audit_study(name: Name, home: HomeOption = None, journal: JournalOption = None, as_json: AsJson = False) -> None:
    """Decide everything again from the recorded stimuli and compare with the record."""
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
            out.print(f"clean: {report.entries} entries decided again, all as recorded ({drawn})")
        for finding in report.findings:
            out.print(Text(str(finding)))
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
    """Give up one trial of a study that nobody drives at the moment; `hpo resume` goes on without it."""
    from hpo_core.journal.sql import current_owner
    from hpo_core.model.errors import StudyBusyError
    from hpo_core.study import Study
    from hpo_core.views.trial_story import trial_story

    source = Home(home, journal).read_journal()
    try:
        epoch = source.claim(name, current_owner(), time.time(), force=force)
    except StudyBusyError as error:
        raise StudyBusyError(
            f"{error} Interrupted with Ctrl-C, it loses nothing: then `hpo abandon {name} --trial {trial}`, then "
            f"`hpo resume {name}`."
        ) from None
    try:
        study = Study.open(name, source, reading=True)
        study.epoch = epoch
        study.abandon(trial)
    finally:
        source.release(name, epoch)
    for line in trial_story(study, trial)[-2:]:
        out.print(Text(line), soft_wrap=True)
