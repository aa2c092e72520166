"""The flows with a form in the Prefect UI: tune, tune-file, resume, rerun.

``hpo_flows/deployments/prefect.yaml`` lists them. Where journal, checkpoints and reports lie is a setting of the worker
(``HPO_HOME``, ``HPO_JOURNAL``), never a parameter: see ``permissions.py``.
"""

from contextlib import closing
from typing import Any

from prefect.client.schemas.objects import State
from pydantic import Field

from hpo_core.replay.audit import damage_named
from hpo_core.replay.rerun import rerun_spec
from hpo_core.spec import StudySpec
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
from hpo_flows.deployed.study_runs import (
    begin,
    dated_name,
    drive_to_end,
    recorded_study,
    resumed,
    this_flow_run,
)

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
