"""The flow ``tune``: a new study described in a form, or one that a command or another flow has opened.

Prefect validates and draws the form from the flow's signature. A command knows more of its study than the form can
say, so it opens a session itself and runs the same flow with it.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from hpo_core.security.masking import masked_errors
from hpo_core.spec import StudySpec
from hpo_core.views.settings_words import data_words
from hpo_flows.deployed.form import (
    NEEDED,
    SHOWN,
    AdvancedSection,
    AttemptsSection,
    Choice,
    Cluster,
    FurtherSection,
    JournalRetry,
    LimitsSection,
    Metric,
    NewName,
    Number,
    Objective,
    OptunaCopy,
    Sampler,
    Seed,
    filled_in,
    with_changes,
)
from hpo_flows.deployed.form_data import DataSection
from hpo_flows.deployed.form_folds import drawn_signature
from hpo_flows.deployed.form_packing import PackingSection
from hpo_flows.deployed.form_schema import DEFAULT_METHOD, NOTHING, Method, given
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.deployed.plain_failures import failing_in_words
from hpo_flows.deployed.study_runs import begin, dated_name, this_flow_run

_METRIC = Metric()


_opened: ContextVar[Callable[[], Any] | None] = ContextVar("opened", default=None)
"""What the flow runs for a study that somebody opened before."""


@flow(
    name="tune",
    task_runner=ThreadPoolTaskRunner(max_workers=1024),  # type: ignore[arg-type]
    persist_result=False,
    retries=0,
)
@failing_in_words(within=lambda: _opened.get() is not None)
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
    if (opened := _opened.get()) is not None:
        return opened()
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
"""Of this Prefect makes the form (``parameter_schema``); runs are checked against the function's own."""


def run_in_flow(spec: StudySpec, run: Callable[[], Any], *, return_state: bool = False) -> Any:
    """Run the flow in this process for a study that is open; returns what ``run`` returns.

    The flow run's parameters show the study in the words of the form. They are not validated, for a study file may
    say what the form cannot.

    Args:
        run: the body of the flow.
        return_state: return the flow run's final state instead, and raise nothing where it failed.
    """
    handed = _opened.set(run)
    try:
        unchecked: Any = tune.with_options(validate_parameters=False)
        return unchecked(**_as_form(spec), return_state=return_state)
    finally:
        _opened.reset(handed)


def _as_form(spec: StudySpec) -> dict[str, Any]:
    plain = spec.plain()
    record = spec.search.record()  # thousands of parameters and grants: more than a Prefect server takes
    rows = [{"name": name, **parameter} for name, parameter in plain["space"].items()]
    return {
        "objective": spec.objective,
        "metric": plain["metric"],
        "numbers": [row for row in rows if "choices" not in row],
        "choices": [row for row in rows if "choices" in row],
        "method": plain["search"] if record is None else {"method": spec.search.method, "source": record.source},
        "sampler": spec.sampler.name,
        "limits": plain["stop"],
        "training": plain["training"],
        **({} if plain["packing"] is None else {"packing": plain["packing"]}),
        **({} if spec.data is None else {"data": data_words(spec)}),
        "seed": spec.seed,
        "cluster": plain["cluster"],
        "experiment": spec.tracking.experiment,
        **({} if spec.tracking.optuna is None else {"optuna": spec.tracking.optuna}),
        "name": spec.study,
        "journal_retry_seconds": spec.journal.retry_seconds,
    }
