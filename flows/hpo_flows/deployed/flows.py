"""The flows with a form in the Prefect UI: tune, tune-file, resume, rerun.

``hpo_flows/deployments/prefect.yaml`` lists them. Where journal, checkpoints and reports lie is a setting of the worker
(``HPO_HOME``, ``HPO_JOURNAL``), never a parameter: see ``permissions.py``.
"""

from contextlib import closing
from datetime import UTC
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run
from pydantic import Field

from hpo_core.model.errors import HpoError, SpecError, StudyExistsError, StudyNotFoundError
from hpo_core.replay.audit import damage_named
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.views.failure_reasons import no_result_words
from hpo_flows.deployed.form import (
    FormPart,
    Seed,
    StudyForm,
    StudyName,
    TrialNumber,
    form_flow,
    study_of,
)
from hpo_flows.deployed.permissions import Permissions, home_here
from hpo_flows.prefect_api.connection import api_is_unreachable
from hpo_flows.prefect_pages.tune_flow import end_state, tags_of
from hpo_flows.study_run.session import Session
from hpo_flows.study_run.study_flow import drive

_NEW_NAME = "Name of the new study. Empty: the old one's with date and time."


class TuneFileForm(FormPart):
    file: str = Field(description="The study file. It gives all that you leave empty below.")
    name: StudyName | None = Field(default=None, description=_NEW_NAME.replace("old one", "file"))
    seed: Seed | None = Field(
        default=None, description="All draws and all training seeds follow from it. Empty: the file's."
    )


@form_flow("tune-file")
def tune_file(form: TuneFileForm) -> State[Any]:
    """Run a new study, described by a study file of the deployment, to its end."""
    permissions = Permissions.of_environment()
    run = this_flow_run()
    plain = permissions.load(form.file).plain()
    changes: dict[str, Any] = {"study": form.name or dated_name(plain["study"], run)}
    if form.seed is not None:
        changes["seed"] = form.seed
    return begin("tune", run, StudySpec.from_plain(plain | changes, "form"))


class ResumeForm(FormPart):
    study: StudyName = Field(description="Name of the study, as in the name of the run that began it.")
    configs: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Configurations to add to those that the study began with, in all. After 8, write 20 for 12 more.",
    )


@form_flow("resume")
def resume(form: ResumeForm) -> State[Any]:
    """Go on with a study that was cancelled, halted, or whose flow run crashed."""
    return drive_to_end(resumed(form.study, form.configs), "resume")


class RerunForm(FormPart):
    study: StudyName = Field(description="Name of the study to train again.")
    name: StudyName | None = Field(default=None, description=_NEW_NAME)
    trials: list[TrialNumber] = Field(
        default=[], description="Numbers of the trials to train, with what they went on from; empty: all."
    )


@form_flow("rerun")
def rerun(form: RerunForm) -> State[Any]:
    """Train again along a study's recorded jobs: same parameters, seeds and promotions."""
    run = this_flow_run()
    recorded_study(form.study)
    name = form.name or dated_name(form.study, run)
    with closing(home_here().read_journal()) as journal, damage_named(journal, form.study):
        spec = rerun_spec(list(journal.entries(form.study)), name, trials=form.trials)
    return begin("rerun", run, spec)


@form_flow("tune")
def tune(form: StudyForm) -> Any:
    """Run a new study, described here, to its end.

    The run's artifacts follow it while it runs; its log has a line per decision. Cancel ends it, Pause and Resume
    (or Retry) go on with the same study.
    """
    run = this_flow_run()
    name = (form.model_extra or {}).get("name") or dated_name("study", run)
    return begin("tune", run, study_of(form, name, Permissions.of_environment()))


def begin(action: str, run: FlowRun, spec: StudySpec) -> State[Any]:
    """Begin a study; a run that Prefect starts again (suspended, crashed, retried) goes on with the same one."""
    home = home_here()
    Permissions.of_environment().check(spec)
    # as `drive` labels it when it is there first; Prefect's count of runs stays 1 where a suspended one is resumed
    if run.name == f"{action}-{spec.study}" and set(tags_of(spec)) <= set(run.tags):
        try:
            return drive_to_end(resumed(spec.study), action)
        except StudyNotFoundError:
            pass  # it ended before the study's first entry
    try:
        session = Session(home, spec.study, spec=spec)
    except StudyExistsError:
        raise StudyExistsError(
            f"Study {spec.study!r} exists already. Start `resume` with its name to go on with it, or to ask for more; "
            "or give the new study another name."
        ) from None
    return drive_to_end(session, action)


def resumed(study: str, configs: int = 0) -> Session:
    """Claim a recorded study for a flow run.

    Args:
        configs: configurations that it is to have beyond its own, those asked for before included.

    Raises:
        StudyBusyError: somebody else drives it.
    """
    try:
        asked = recorded_study(study).state.extra_configs
    except StudyNotFoundError as error:
        raise StudyNotFoundError(
            f"{error} A run that ended before its study began is to be retried, not resumed."
        ) from None
    return Session(home_here(), study, extend=max(0, configs - asked))


def recorded_study(study: str) -> Study:
    """A recorded study, once its objective is found to be allowed: other doors lead into the journal too."""
    with closing(home_here().read_journal()) as journal:
        Permissions.of_environment().check(Study.current_spec(study, journal))
        return Study.open(study, journal, reading=True)


def drive_to_end(session: Session, action: str) -> State[Any]:
    session.action = action
    session.speak_by(get_run_logger())
    session.inform(f"starting: {session.spec.cluster.title} ...")
    with closing(session):
        study = drive(session)
    state = end_state(study, _cure(study))
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
