"""MLflow as this process is told of it: its address, its experiment, and the run that is active."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpo_core.model.errors import SpecError
from hpo_core.model.file_urls import settled_database
from hpo_core.security.masking import add_secrets_of, without_credentials
from hpo_core.security.tracking_servers import is_own, is_same
from hpo_core.tracking.tracker_links import reason_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


def tracking_here(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``tracking``, completed by what MLflow is told in this process.

    The active run of this thread becomes ``parent_run``, its experiment ``experiment``. Without one, the experiment is
    that of ``mlflow.set_experiment``, ``MLFLOW_EXPERIMENT_ID`` or ``MLFLOW_EXPERIMENT_NAME``. ``mlflow`` is the
    tracking URI of this process where one is set. Settings that are given go before each of them, and a study that goes
    to another MLflow has no parent.

    Raises:
        SpecError: MLflow does not know the experiment.
    """
    said = {key: value for key, value in given.items() if value is not None}
    if said.get("mlflow") == "off":
        return said
    number, name = (os.environ.get(f"MLFLOW_EXPERIMENT_{part}") for part in ("ID", "NAME"))
    if "mlflow" not in sys.modules and number is None:  # it was told nothing, and its import takes long
        elsewhere = "mlflow" in said and not is_own(said["mlflow"])
        return said if name is None or elsewhere else {"experiment": name} | said
    import mlflow

    active = mlflow.active_run()
    known = mlflow.is_tracking_uri_set()  # type: ignore[no-untyped-call]
    if active is None and number is None and name is None and not known:
        return said
    uri = settled_database(mlflow.get_tracking_uri())
    add_secrets_of(uri)
    if not is_same(said.get("mlflow", uri), uri):
        return said
    found = {"mlflow": without_credentials(uri)}
    if active is not None:
        found["parent_run"], number = active.info.run_id, active.info.experiment_id
    if number is not None:
        found["experiment"] = _name_of(mlflow.MlflowClient(), number)
    elif name is not None:
        found["experiment"] = name
    return found | said


def _name_of(client: MlflowClient, experiment: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_experiment(experiment).name)
    except MlflowException as error:
        raise SpecError(
            f"tracking.experiment: MLflow's experiment {experiment!r}, that of this process, cannot be read "
            f"({reason_of(error)}). Call mlflow.set_experiment(...), or give tracking=hpo.Tracking(experiment=...)."
        ) from None
