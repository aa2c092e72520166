"""The flows with a form in the Prefect UI beside ``tune``: tune-file, resume, rerun.

``hpo_flows/deployments/prefect.yaml`` lists them. Where journal, checkpoints and reports lie is a setting of the worker
(``HPO_HOME``, ``HPO_JOURNAL``), never a parameter: see ``permissions.py``.
"""

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from hpo_core.model.errors import SpecError
from hpo_core.replay.audit import damage_named
from hpo_core.replay.rerun import rerun_spec
from hpo_core.security.masking import masked_errors
from hpo_flows.deployed.flow_run import failing_in_words
from hpo_flows.deployed.form import (
    NEEDED,
    SHOWN,
    AdvancedSection,
    AttemptsSection,
    Choice,
    Cluster,
    Count,
    DataSection,
    FurtherSection,
    JournalRetry,
    LimitsSection,
    Metric,
    NewName,
    Number,
    Objective,
    OneTrial,
    OptunaCopy,
    OtherCluster,
    OtherSeed,
    PackingSection,
    Sampler,
    Seed,
    StudyFile,
    StudyName,
    Target,
    TrialNumber,
    filled_in,
    with_changes,
)
from hpo_flows.deployed.form_schema import DEFAULT_METHOD, NOTHING, Method, drawn_signature, given
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.deployed.study_runs import (
    begin,
    dated_name,
    deployed_home,
    drive_to_end,
    recorded_study,
    resumed,
    this_flow_run,
    train_further,
)

_settings: dict[str, Any] = {"persist_result": False, "retries": 0}


@flow(name="tune-file", **_settings)
@failing_in_words()
@masked_errors()
def tune_file(
    file: StudyFile, name: NewName = NOTHING, seed: OtherSeed = NOTHING, cluster: OtherCluster = NOTHING
) -> State[Any]:
    """Run a new study, described by a study file of the deployment, to its end.

    Args:
        file: Everything not given below comes from it.
        name: Name of the study. Empty: the file's name with date and time.
        seed: All draws and all training seeds follow from it. Empty: the file's.
        cluster: Where jobs train.
    """
    permissions = Permissions.of_environment()
    run = this_flow_run()
    chosen = given(name) or dated_name(_stem(file), run)
    changed = with_changes(permissions.load(file), chosen, permissions, seed=given(seed), cluster=given(cluster))
    return begin("tune", run, changed)


@flow(name="resume", **_settings)
@failing_in_words()
@masked_errors()
def resume(
    study: StudyName,
    configs: Count = 0,
    take_over: bool = False,
    to: Target = NOTHING,
    trial: OneTrial = NOTHING,
) -> State[Any]:
    """Go on with a study that was cancelled, halted, or whose flow run crashed; or train its best trial further.

    Args:
        study: Name of the study, as in the name of the run that began it.
        configs: Ask for so many configurations more before going on; once, however often this run is started again.
        take_over: Even if another run seems to drive it still; that one can then write nothing more.
        to: Train one trial further, beyond the search, to so many units of training in all, and do nothing else.
        trial: Which trial that is. Empty: the best.
    """
    to, trial = given(to), given(trial)
    run = this_flow_run().id
    if to is None and trial is None:
        return drive_to_end(resumed(study, run, configs, take_over=take_over), "resume")
    if to is None or configs:
        raise SpecError(
            "resume: to trains one trial further, and nothing else: give it without configs, and trial only with it."
        )
    return train_further(study, run, take_over, trial=trial, to=to)


@flow(name="rerun", **_settings)
@failing_in_words()
@masked_errors()
def rerun(study: StudyName, name: NewName = NOTHING, trials: list[TrialNumber] = []) -> State[Any]:  # noqa: B006
    """Train again along a study's recorded grants: same parameters, seeds and promotions.

    Args:
        study: Name of the study to train again.
        name: Name of the new study. Empty: the old one's with date and time.
        trials: Numbers of the trials to train, with what they went on from; empty: all.
    """
    run = this_flow_run()
    journal = deployed_home().read_journal()
    try:
        recorded_study(study)
        with damage_named(journal, study):
            spec = rerun_spec(list(journal.entries(study)), given(name) or dated_name(study, run), trials=trials)
    finally:
        journal.close()
    return begin("rerun", run, spec)


def _stem(file: str) -> str:
    """What a study file is about: its folder where it is called study.yaml, as most are."""
    path = Path(file)
    return path.parent.name if path.stem == "study" and path.parent.name else path.stem


_METRIC = Metric()


@flow(name="tune", **_settings)
@failing_in_words()
@masked_errors()
def tune(
    objective: Objective,
    name: NewName = NOTHING,
    method: Method = NOTHING,
    metric: Metric = _METRIC,
    numbers: list[Number] = [],  # noqa: B006
    choices: list[Choice] = [],  # noqa: B006
    sampler: Sampler = "random",
    cluster: Cluster = NOTHING,
    seed: Seed = 0,
    limits: LimitsSection = NOTHING,
    training: AttemptsSection = NOTHING,
    packing: PackingSection = NOTHING,
    data: DataSection = NOTHING,
    further: FurtherSection = NOTHING,
    experiment: str = "hpo",
    optuna: OptunaCopy = "off",
    journal_retry_seconds: JournalRetry = 60.0,
    advanced: AdvancedSection = NOTHING,
) -> Any:
    """Run a new study, described here, to its end.

    The run's artifacts follow it while it runs; its log has a line per decision. Cancel ends it, Pause and Resume
    (or Retry) go on with the same study.

    Args:
        objective: The training function, package.module:function.
        name: Name of the study. Empty: "study" with date and time.
        method: The search method and its budget: how many configurations, and how long the best of them train.
        metric: What is optimized.
        numbers: Hyperparameters that are numbers in a range, a row each; a study needs one row at least, here or in
            choices.
        choices: Hyperparameters that take one of several values, a row each.
        sampler: Proposes configurations; those named ...Sampler are Optuna's.
        cluster: Where jobs train: on the machine that runs this, on a Dask cluster that runs already, or on the
            cluster of a study file (Slurm, Kubernetes, GPUs).
        advanced: Seed, limits, attempts, packing, data, tracking, and what else a study file may say.
        seed: All draws and all training seeds follow from it. On the form, this and what follows is within `advanced`.
        limits: Rules that end the study before its search does; `resume` goes on with it.
        training: Limits of one attempt, and when a trial is given up.
        packing: Several jobs at once on one device, by what they need of it, instead of one job on each slot.
        data: Partitions of the data that lie on the workers: models travel to them.
        further: What else a study file may say.
        experiment: MLflow experiment that holds the runs.
        optuna: Copies the study to an Optuna storage; on: the worker's own, or a database that is allowed.
        journal_retry_seconds: How long a journal that cannot be reached is tried again before the study ends.
    """
    permissions = Permissions.of_environment()
    run = this_flow_run()
    described = filled_in(
        permissions,
        cluster=given(cluster),
        objective=objective,
        metric=metric,
        numbers=numbers,
        choices=choices,
        method=DEFAULT_METHOD if given(method) is None else method,
        sampler=sampler,
        limits=limits,
        training=training,
        packing=packing,
        data=data,
        further=further,
        seed=seed,
        experiment=experiment,
        optuna=optuna,
        journal_retry_seconds=journal_retry_seconds,
        advanced=advanced,
    )
    chosen = given(name) or dated_name("study", run)
    spec = with_changes(described, chosen, permissions, seed=None, cluster=given(cluster))
    return begin("tune", run, spec)


tune.__signature__ = drawn_signature(tune.fn, SHOWN, NEEDED)  # type: ignore[attr-defined]
"""Signature of which Prefect makes the form (``parameter_schema``); runs are checked against the function's own."""
