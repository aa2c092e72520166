"""A flow run of a study: begin it, or go on with it, also where Prefect starts the run again."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run

from hpo_core.home import Home
from hpo_core.journal.protocol import Owner
from hpo_core.model.errors import HpoError, SpecError, StudyBusyError, StudyNotFoundError
from hpo_core.security.private_files import private_folder, write_private
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.views.failure_reasons import no_result_words
from hpo_flows.deployed.flow_run import drive
from hpo_flows.deployed.permissions import Permissions, refuse_relative_places
from hpo_flows.prefect_api.api_watch import api_is_unreachable
from hpo_flows.prefect_pages.flow_states import end_state, failed
from hpo_flows.study_run.session import Session

_FOLDER = "flow-runs"


class RunMarker(msgspec.Struct, frozen=True, kw_only=True):
    """A flow run's note of its study."""

    began: bool = False
    """It began the study, and did not find it."""
    owner: Owner | None = None
    """Owner of the study's last process."""
    configs: int | None = None
    """As many configurations as will have been asked for, beyond the study's own, once its wish is fulfilled."""


def read_marker(folder: Path, run: UUID) -> RunMarker | None:
    """None if the run was not here before."""
    try:
        return msgspec.json.decode((folder / _FOLDER / f"{run}.json").read_bytes(), type=RunMarker)
    except (OSError, msgspec.MsgspecError):
        return None


def write_marker(folder: Path, run: UUID, marker: RunMarker) -> None:
    """Replace it in one step, durably: the journal's next entry must not outlive it."""
    path = folder / _FOLDER / f"{run}.json"
    private_folder(path.parent, below=folder)
    write_private(path, msgspec.json.encode(marker), durable=True)


def begin(action: str, run: FlowRun, spec: StudySpec) -> State[Any]:
    """Begin a study, or go on with it where this very flow run began it (suspended, crashed and started again)."""
    home = deployed_home()
    Permissions.of_environment().check(spec)
    folder = home.study_folder(spec.study)
    marker = read_marker(folder, run.id)
    if marker is not None and marker.began:
        try:
            return drive_to_end(resumed(spec.study, run.id, 0, take_over=False), action)
        except StudyNotFoundError:
            pass  # it ended between its marker and the study's first entry
    session = Session(home, spec.study, spec=spec)
    _leave_marker(session, folder, run.id, RunMarker(began=True, owner=session.owner))
    return drive_to_end(session, action)


def resumed(study: str, run: UUID, configs: int, *, take_over: bool) -> Session:
    """Claim a recorded study for a flow run that may have been here before.

    Raises:
        StudyBusyError: somebody else drives it. Only what a former process of this run still holds is taken over
            unasked, and ``take_over`` is heeded the first time: the run may be retried long afterwards.
    """
    home = deployed_home()
    folder = home.study_folder(study)
    known = read_marker(folder, run)
    marker = known or RunMarker()
    try:
        asked = recorded_study(study).state.extra_configs
    except StudyNotFoundError as error:
        raise StudyNotFoundError(
            f"{error} A run that ended before its study began is to be retried, not resumed."
        ) from None
    target = asked + configs if marker.configs is None else marker.configs
    extend = max(0, target - asked)
    try:
        session = Session(home, study, force=take_over and known is None, extend=extend)
    except StudyBusyError:
        with closing(home.open_journal()) as journal:
            owner = journal.info(study).owner
        if owner is None or owner != marker.owner:
            raise StudyBusyError(_busy_words(study, owner)) from None
        session = Session(home, study, force=True, extend=extend)
    left = msgspec.structs.replace(marker, owner=session.owner, configs=target)
    _leave_marker(session, folder, run, left)
    return session


def _leave_marker(session: Session, folder: Path, run: UUID, marker: RunMarker) -> None:
    try:
        write_marker(folder, run, marker)
    except BaseException:  # nobody else would let the study go
        session.close()
        raise


def _busy_words(study: str, owner: Owner | None) -> str:
    if owner is None:
        return f"Study {study!r} was let go at this moment; Retry."
    return (
        f"Study {study!r} is driven by another run or command (process {owner.pid} on {owner.host}). "
        "Wait for its end or cancel it; if you know that it is gone, run `resume` with take_over: it can then write "
        "nothing more."
    )


def deployed_home() -> Home:
    refuse_relative_places()
    return Home()


def recorded_study(study: str) -> Study:
    """A recorded study, once its objective is found to be allowed: other doors lead into the journal too."""
    with closing(deployed_home().read_journal()) as journal:
        Permissions.of_environment().check(Study.current_spec(study, journal))
        return Study.open(study, journal, reading=True)


def drive_to_end(session: Session, action: str) -> State[Any]:
    with closing(session):
        study = drive(session, action)
    state = end_state(study, failed, _cure(study))
    if not api_is_unreachable():
        with get_client(sync_client=True) as client:
            now = this_flow_run().state
            if now is not None and (now.is_paused() or now.is_failed()):
                # paused after the last job: Prefect's engine leaves it at that, and its server fails it in time
                client.set_flow_run_state(UUID(str(flow_run.id)), state, force=True)
    return state


def _cure(study: Study) -> str:
    """Cure of a study that gave up. Trials that failed are over: without a result nothing is left of it."""
    if study.room_needed:
        return "A resume would halt again: a study keeps its limits."
    if no_result_words(study):
        return f"Mend that and start a new study: {study.name} has no result to go on from."
    return f"Mend that, then run `resume` with study {study.name}: it goes on where it stands."


def this_flow_run() -> FlowRun:
    if flow_run.id is None:
        raise HpoError("This flow runs inside a flow run only; use the command line's `hpo tune` without Prefect.")
    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(str(flow_run.id)))


def dated_name(stem: str, run: FlowRun) -> str:
    """The same each time Prefect starts this flow run; sorts by time."""
    if run.created is None:
        raise SpecError("The flow run has no time of creation; give the study a name.")
    begun = run.created.astimezone(UTC)
    return f"{stem[:80]}-{begun:%Y%m%d-%H%M%S}-{str(run.id)[:4]}"
