"""The flow that keeps a champion: evaluate it on new data, retrain or tune, and promote what is really better.

All policy is in ``hpo_core.retraining``; the steps are in ``hpo_flows.retraining_run``. Each step is a task, and each
study a subflow.
"""

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from prefect import tags
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, flow_run
from prefect.states import Completed
from pydantic import Field

from hpo_core.home import Home
from hpo_core.retraining.promotion_policy import Rules
from hpo_core.retraining.repeated_studies import absolute_path
from hpo_core.security.masking import mask_logs
from hpo_core.security.private_files import LockFile
from hpo_core.tracking.mlflow_client import errors_without_credentials, prepare_environment
from hpo_flows.deployed.form import FormPart, form_flow
from hpo_flows.deployed.permissions import Permissions, home_here
from hpo_flows.retraining_run import Retraining, check_function

__all__ = ["Rules", "retrain"]


class RetrainingBusyError(Exception):
    """Another run retrains the model; its text says which."""


@contextmanager
def only_retraining(home: Home, model: str, who: str) -> Iterator[None]:
    """Hold the lock of a model.

    The kernel gives it back when this process ends, also after ``kill -9``: nothing has to be cleaned up.

    Args:
        who: what others are told who ask meanwhile.

    Raises:
        RetrainingBusyError: another process holds it, or this one.
    """
    place = home.make_folder("retraining") / f"{model}.lock"
    with closing(LockFile(place, f"the retraining of model {model!r}")) as lock:
        if not lock.take(fcntl.LOCK_EX):
            raise RetrainingBusyError(lock.read() or "another run")
        lock.write(who)
        try:
            yield
        finally:
            lock.write("")
            lock.give_back()


def run_name(model: str, scheduled: datetime, run: str) -> str:
    """Model, time as it was scheduled, and the end of the run's id: ``retrain-digits-20261122-0300-9f3a``.

    Runs of one minute differ by the id, as its end shows: ids of newer Prefects begin with the time.
    """
    return f"retrain-{model}-{scheduled.astimezone(UTC):%Y%m%d-%H%M}-{run[-4:]}"


def _run_name() -> str:
    return run_name(flow_run.parameters["model"], flow_run.scheduled_start_time, flow_run.id)


class RetrainForm(FormPart):
    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$", description="Name in MLflow's model registry.")
    data: str = Field(
        min_length=1, description="The new data, as trial.params['data'] shows it to the training function."
    )
    evaluate: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = Field(
        default=None,
        description="package.module:function that evaluates a trained model; default: the champion's.",
    )
    study: str | None = Field(
        default=None,
        description="Where there is no champion yet: the study whose best trial becomes the first.",
    )
    rules: Rules = Field(default=Rules(), description="When to tune again, what a challenger must show.")


@form_flow("retrain", _run_name)
def retrain(form: RetrainForm) -> State[Any]:
    """Retrain a champion on new data and replace it where a challenger is better by more than the noise of seeds.

    Evaluate the champion on the new data; check for drift; train its parameters again along the recorded schedule, or
    (after drift, or where that is not good enough) tune again, begun from earlier studies; test the challenger; move
    the alias. A failed or partial run changes nothing. One run at a time for each model: another one that begins
    meanwhile says so and ends as Skipped.
    """
    model, data, evaluate = form.model, form.data, form.evaluate
    mask_logs()
    place = home_here()
    if evaluate is not None:
        check_function(evaluate)
    if deployment.id is not None:
        data = Permissions.of_environment().data_of(data)
    prepare_environment()
    try:
        with (
            tags("hpo", model),
            errors_without_credentials(),
            only_retraining(place, model, f"flow run {flow_run.name}"),
        ):
            found = Retraining(place, model, evaluate, form.rules).retrain(absolute_path(data), form.study)
    except RetrainingBusyError as busy:
        words = f"{model} is being retrained by {busy}; nothing was done. Start it again after that, if need be."
        return Completed(name="Skipped", message=words, data={"model": model, "skipped": True})
    return Completed(message=found["outcome"], data=found)
