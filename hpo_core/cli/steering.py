"""``hpo enqueue``: a configuration for a study that runs, or that nobody drives at the moment."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo_core.cli.debugging import MoreParams, ParamsOption
from hpo_core.cli.options import HomeOption, JournalOption, Name
from hpo_core.cli.output import out
from hpo_core.home import Home
from hpo_core.model.devices.pool_member import LEAST_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT
from hpo_core.model.errors import HpoError, SpecError, StudyBusyError
from hpo_core.model.trial import Params

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
    from hpo_core.execution.in_process import parse_params, read_params
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
    out.say(f"enqueued in {name}: {json.dumps(given)}")


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


def share(
    name: Name,
    weight: Annotated[float | None, typer.Option("--weight", help="Its slots compared with those of weight 1.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher ones get what they can use first.")] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Change a study's weight or priority in the pool that it shares; without options, show how it stands.

    A running study follows within seconds, and a resumed one keeps the change. Where HPO_ALLOWED_SHARE is set, as for
    deployments, it bounds this as well.
    """
    from hpo_core.journal.sql import current_owner, is_alive
    from hpo_core.model.devices.pool_member import Wish
    from hpo_core.pool.seat import pool_of
    from hpo_core.pool.store import live_rows, pools_of
    from hpo_core.pool.words import standings
    from hpo_core.spec import AddressClusterSpec
    from hpo_core.spec.share_bound import ALLOWED_SHARE, allowed_share, excess
    from hpo_core.study import Study

    if weight is not None and not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise SpecError(f"--weight {weight:g}: give a weight from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}.")
    if priority is not None and not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        raise SpecError(f"--priority {priority}: give a priority from {LEAST_PRIORITY} to {MOST_PRIORITY}.")
    source = Home(home, journal).read_journal()
    spec = Study.open(name, source, at=0).spec
    if spec.share is None:
        raise SpecError(
            f"Study {name!r} shares its slots with nobody (no share in its settings), so it has no weight or "
            "priority. A new study has one with --set share.pool=NAME."
        )
    change: dict[str, Any] = {"weight": weight, "priority": priority}
    claim = spec.share.model_copy(update={key: value for key, value in change.items() if value is not None})
    most = allowed_share(os.environ)
    if most is not None and claim != spec.share:
        at_address = isinstance(spec.cluster, AddressClusterSpec)
        if why := excess(claim, most, at_address=at_address):
            raise SpecError(f"{why}, which {ALLOWED_SHARE} does not allow here. Whoever sets it can change it.")
    pools = pools_of(source)
    present = [row.pool for row in pools.all() if row.study == name and row.member is not None]
    pool = present[0] if present else pool_of(spec, current_owner().host)  # it may have run on another machine before
    if weight is not None or priority is not None:
        pools.say(pool, name, Wish(weight=weight, priority=priority))
    wish = next((row.wish for row in pools.all() if (row.pool, row.study) == (pool, name)), None) or Wish()
    now = {
        "weight": f"{spec.share.weight if wish.weight is None else wish.weight:g}",
        "priority": f"{spec.share.priority if wish.priority is None else wish.priority}",
    }
    terms = ", ".join(f"{title} {value}" for title, value in now.items())
    out.say(f"{name} in pool {pool}: {terms}")
    standing = standings(live_rows(source, is_alive)).get(name)
    if standing is None:
        out.say(f"{name} does not run now; when it goes on, it begins with that.")
    elif weight is None and priority is None:
        out.say(standing.words)
