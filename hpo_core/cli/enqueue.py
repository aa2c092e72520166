"""``hpo enqueue``: a configuration for a study that runs, or that nobody drives at the moment."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from hpo_core.cli.debugging import MoreParams, ParamsOption
from hpo_core.cli.options import HomeOption, JournalOption, Name
from hpo_core.cli.output import out
from hpo_core.home import Home
from hpo_core.model.errors import HpoError, StudyBusyError
from hpo_core.model.trial import Params
from hpo_core.security.untrusted_text import terminal_text

if TYPE_CHECKING:
    from hpo_core.execution.enqueue_requests import EnqueueRequest

_ASK_SECONDS = 5.0
"""Between two looks whether the study is still driven."""


def enqueue(
    name: Name,
    more_params: MoreParams = None,
    params: ParamsOption = None,
    skip_if_exists: Annotated[
        bool, typer.Option("--skip-if-exists", help="Do nothing where a trial has these values already.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for a running study to take it.")
    ] = 60.0,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Have a configuration tried next, in a study that runs or one to resume; the sampler adds what is left out."""
    from hpo_core.execution.single_trial import parse_params, read_params
    from hpo_core.study import Study
    from hpo_core.study.checked_requests import checked_configuration

    place = Home(home, journal)
    source = place.read_journal()
    study = Study.open(name, source, reading=True)
    texts = parse_params([*(params or ()), *(more_params or ())])
    if not texts:
        raise HpoError(f"hpo enqueue {name}: give at least one value, as --params lr=0.01.")
    given = checked_configuration(study.spec, read_params(study.spec.search_space(), texts))
    if not _write(place, name, given, skip_if_exists):
        _ask(place, name, given, skip_if_exists, seconds=wait)
    out.print(Text(f"enqueued in {name}: {terminal_text(json.dumps(given))}"), soft_wrap=True)


def _write(home: Home, name: str, given: Params, skip_if_exists: bool) -> bool:
    """Enqueue it where nobody drives the study; False where somebody does."""
    from hpo_core.journal.sql import current_owner
    from hpo_core.study import Study

    source = home.read_journal()
    try:
        epoch = source.claim(name, current_owner(), time.time(), force=False)
    except StudyBusyError:
        return False
    try:
        study = Study.open(name, source, reading=True)
        study.epoch = epoch
        study.enqueue(given, skip_if_exists=skip_if_exists)
    finally:
        source.release(name, epoch)
    return True


def _ask(home: Home, name: str, given: Params, skip_if_exists: bool, *, seconds: float) -> None:
    """Ask whoever drives it; enqueue it after all where that ended meanwhile."""
    from hpo_core.execution.enqueue_requests import EnqueueRequest

    folder = home.study_folder(name)
    if not folder.is_dir():
        raise HpoError(
            f"Study {name!r} runs with another home folder than {home.folder}; nothing was enqueued. Give the one of "
            "its controller with --home, or enqueue once it is interrupted."
        )
    request = EnqueueRequest(folder, given, skip_if_exists=skip_if_exists)
    try:
        _await(request, home, name, given, skip_if_exists=skip_if_exists, seconds=seconds)
    except KeyboardInterrupt:  # whoever ends the command does not expect the configuration to come later
        request.withdraw()
        raise


def _await(
    request: EnqueueRequest, home: Home, name: str, given: Params, *, skip_if_exists: bool, seconds: float
) -> None:
    end = time.monotonic() + seconds
    while not request.wait(max(0.0, min(_ASK_SECONDS, end - time.monotonic()))):
        late, ended = time.monotonic() >= end, not _is_driven(home, name)
        if not (late or ended):
            continue
        if request.withdraw():
            if ended and _write(home, name, given, skip_if_exists):
                return
            raise HpoError(
                f"Study {name!r} runs and did not take the configuration within {seconds:g} s; nothing was enqueued. "
                "Does its controller have another home folder, or another version? Then enqueue once it is interrupted."
            )
        if late:
            raise HpoError(
                f"Study {name!r} took the request and did not answer within {seconds:g} s. If `hpo show {name}` has no "
                "such configuration, `hpo resume` enqueues it first."
            )


def _is_driven(home: Home, name: str) -> bool:
    from hpo_core.journal.sql import is_alive

    return is_alive(home.read_journal().info(name))
