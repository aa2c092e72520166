"""MLflow's client with what had to be learned about it: first use, quiet, lookup by tags, one call per run.

Measured on 3.17.2: a store drops a metric point it holds already (same key, step, time and value, NaN
included) and a parameter logged again with the same value; another value is refused. ``set_terminated``
costs half of ``update_run`` and takes any status.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpo_core.model.errors import HpoError, SpecError, StorageError
from hpo_core.model.file_urls import sqlite_file, sqlite_url
from hpo_core.security.masking import without_credentials
from hpo_core.security.private_files import LockFile, open_private, private_database
from hpo_core.tracking.tracked_study import MetricPoint
from hpo_core.tracking.tracker_links import legal_key, milliseconds, reason_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PAGE = 1000
log = logging.getLogger("hpo.tracking")
METRICS_PER_CALL = 900
"""MLflow takes 1000 metrics, parameters and tags in one call; 100 are left for the tags."""


_ENVIRONMENT = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds; MLflow's own: 120, and 7 retries
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}


class KnownRun(msgspec.Struct):
    """A run that MLflow holds."""

    run_id: str
    status: str
    ended: int | None
    """Milliseconds."""
    deleted: bool
    tags: dict[str, str]


def prepare_environment() -> None:
    """MLflow quiet, and an absent server noticed within seconds. Before MLflow is imported."""
    for name, level in {"urllib3": logging.ERROR, "mlflow": logging.ERROR, "alembic": logging.ERROR}.items():
        logging.getLogger(name).setLevel(level)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def open_client(tracking_uri: str) -> MlflowClient:
    """A client whose store exists and is ready.

    Six processes that open a new SQLite store at once break each other's migrations (five crashed), so
    the first use is made by one at a time. A new PostgreSQL database is made with `mlflow db upgrade` before.
    """
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # after the import, which sets levels of its own
        logging.getLogger(name).setLevel(logging.ERROR)
    with _alone(tracking_uri):
        _make_store(sqlite_file(tracking_uri))
        client = MlflowClient(tracking_uri=tracking_uri)  # this alone migrates the store
        client.search_experiments(max_results=1)
    return client


def _make_store(database: Path | None) -> None:
    """Make a new SQLite store whole or not at all: one whose first migrations were cut short can never be opened.

    It is made beside its place, copied (what MLflow still holds open of the first one is another file) and moved there.
    """
    if database is None or (database.exists() and database.stat().st_size):
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for left in database.parent.glob(f".{escape(database.name)}.new-*"):  # by one that was killed; the lock is ours
        left.unlink(missing_ok=True)
    side, whole = (database.with_name(f".{database.name}.new-{os.getpid()}{end}") for end in ("", "-whole"))
    private_database(side)
    # by default MLflow writes the path of ./mlruns into an SQL text, where ':x' is a parameter
    new: Any = SqlAlchemyStore
    new(sqlite_url(side), (database.parent / "mlartifacts").as_uri()).search_experiments(max_results=1)
    with open_private(whole, "wb") as file:
        file.write(side.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    whole.replace(database)
    side.unlink(missing_ok=True)


@contextlib.contextmanager
def errors_without_credentials() -> Iterator[None]:
    """Raise errors that others may read: the text of MLflow's repeats the tracking URI with its password.

    Raises:
        HpoError: in place of any error of MLflow or of its database.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        raise HpoError(
            f"MLflow cannot be reached, or refuses ({reason_of(error)}). Check that it runs and that "
            "MLFLOW_TRACKING_URI is right, then start this again."
        ) from None


@contextlib.contextmanager
def _alone(tracking_uri: str) -> Iterator[None]:
    database = sqlite_file(tracking_uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = database.with_name(f".{database.name}.first-use.lock")
    with contextlib.closing(LockFile(path, "the first use of MLflow")) as lock:
        fcntl.flock(lock.fd, fcntl.LOCK_EX)
        if database.exists():
            with contextlib.suppress(OSError, StorageError):  # what is wrong with it is said when it is opened
                private_database(database)
        yield


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return str(os.getuid())


class RunStore:
    """The runs of one experiment."""

    def __init__(self, client: Any, tracking_uri: str, experiment: str, artifact_location: str | None) -> None:
        self.client = client
        self.tracking_uri = tracking_uri
        self.experiment_id = self._experiment(experiment, artifact_location)

    def _experiment(self, name: str, artifact_location: str | None) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            database = sqlite_file(self.tracking_uri)
            if artifact_location is None and database is not None:
                # MLflow's default is ./mlruns of whatever folder this process runs in.
                artifact_location = (database.parent / "mlartifacts").as_uri()
            tags = {"mlflow.experimentKind": "custom_model_development"}
            try:
                return str(self.client.create_experiment(name, artifact_location, tags))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self.client.get_experiment_by_name(name)  # another process was quicker
        if found is None or found.lifecycle_stage != "active":
            raise HpoError(
                f"MLflow experiment {name!r} at {without_credentials(self.tracking_uri)} was deleted, and such takes "
                "no runs. Restore it (mlflow experiments restore), or name another one in tracking.experiment."
            )
        return str(found.experiment_id)

    def find(self, tags: Mapping[str, str], *, deleted: bool, order: Sequence[str] = ()) -> list[KnownRun]:
        """Runs with all these tags.

        Args:
            deleted: also those that a user deleted.
            order: what MLflow sorts them by.
        """
        from mlflow.entities import ViewType

        found: list[KnownRun] = []
        token: str | None = None
        seen: set[str | None] = set()
        while token not in seen:  # also where a server repeats itself
            seen.add(token)
            page = self.client.search_runs(
                [self.experiment_id],
                " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items()),
                ViewType.ALL if deleted else ViewType.ACTIVE_ONLY,
                max_results=_PAGE,
                order_by=list(order),
                page_token=token,
            )
            for run in page:
                info = run.info
                is_deleted = info.lifecycle_stage != "active"
                found.append(KnownRun(info.run_id, info.status, info.end_time, is_deleted, dict(run.data.tags)))
            token = page.token or None
        return found

    def create(self, name: str, started: float, tags: dict[str, str]) -> KnownRun:
        """A new run, created by the user of this process."""
        tags = tags | {"mlflow.user": _user()}
        made = self.client.create_run(self.experiment_id, milliseconds(started), tags, name)
        return KnownRun(made.info.run_id, "RUNNING", None, False, tags)

    def log(
        self,
        run: KnownRun,
        *,
        points: Iterable[MetricPoint] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write to a run in one call where MLflow's limits allow; tags that it does not hold last, in the last call."""
        from mlflow.entities import Metric, Param, RunTag

        fresh = {key: value for key, value in (tags or {}).items() if run.tags.get(key, "") != value}

        metrics = [Metric(legal_key(point.key), point.value, milliseconds(point.time), point.step) for point in points]
        pairs = [Param(key, value) for key, value in (params or {}).items()]
        labels = [RunTag(key, value) for key, value in fresh.items()]
        while len(metrics) > METRICS_PER_CALL:
            self.client.log_batch(run.run_id, metrics=metrics[:METRICS_PER_CALL])
            metrics = metrics[METRICS_PER_CALL:]
        while len(pairs) > 100 or (pairs and len(metrics) + len(pairs) + len(labels) > 1000):
            self.client.log_batch(run.run_id, params=pairs[:100])
            pairs = pairs[100:]
        if metrics or pairs or labels:
            self.client.log_batch(run.run_id, metrics=metrics, params=pairs, tags=labels)
        run.tags |= fresh

    def upload(self, run: KnownRun, path: Path, folder: str | None = None) -> None:
        """Write a file, or what a folder holds, among a run's files, or into a ``folder`` of these."""
        write = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
        write(run.run_id, str(path), folder)

    def write_text(self, run: KnownRun, text: str, name: str) -> None:
        """Write a file of a run."""
        with tempfile.TemporaryDirectory(prefix="hpo-text-") as side:
            file = Path(side) / name
            file.write_text(text, encoding="utf-8")
            self.upload(run, file)

    def set_status(self, run: KnownRun, status: str, ended: float | None) -> None:
        """Bring a run's status and end time to what they should be; nothing is written where they are."""
        end = run.ended if ended is None else milliseconds(ended)
        if (run.status, run.ended) == (status, end):
            return
        if end is None:
            self.client.update_run(run.run_id, status)
        else:
            self.client.set_terminated(run.run_id, status, end)
        run.status, run.ended = status, end


def tracking_here(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``tracking``, completed by what MLflow is told in this process.

    The active run of this thread becomes ``parent_run``, its experiment ``experiment``. Without one, the experiment is
    that of ``mlflow.set_experiment``, ``MLFLOW_EXPERIMENT_ID`` or ``MLFLOW_EXPERIMENT_NAME``. Settings that are given
    go before each of them.

    Raises:
        SpecError: MLflow does not know the experiment.
    """
    said = {key: value for key, value in given.items() if value is not None}
    if said.get("mlflow") == "off":
        return said
    found: dict[str, Any] = {}
    number, name = (os.environ.get(f"MLFLOW_EXPERIMENT_{part}") for part in ("ID", "NAME"))
    known = sys.modules.get("mlflow")  # its import takes long, and one that is not imported has no active run
    if known is not None and (active := known.active_run()) is not None:
        found["parent_run"], number = active.info.run_id, active.info.experiment_id
    if number is not None:
        found["experiment"] = _experiment_name(number)
    elif name is not None:
        found["experiment"] = name
    return found | said


def _experiment_name(number: str) -> str:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return str(MlflowClient().get_experiment(number).name)
    except MlflowException as error:
        raise SpecError(
            f"tracking.experiment: MLflow's experiment {number!r}, that of this process, cannot be read "
            f"({reason_of(error)}). Call mlflow.set_experiment(...), or give tracking=hpo.Tracking(experiment=...)."
        ) from None


def trial_run_id(tracking_uri: str, experiment_id: str, run_id: str, trial: int) -> str | None:
    """ID of a trial's run below a study's run; None where there is none (yet).

    Raises:
        HpoError: MLflow cannot be asked.
    """
    from mlflow import MlflowClient

    wanted = f"tags.`mlflow.parentRunId` = '{run_id}' and tags.`hpo.trial` = '{trial}'"
    with errors_without_credentials():
        found = MlflowClient(tracking_uri=tracking_uri).search_runs([experiment_id], wanted, max_results=1)
    return str(found[0].info.run_id) if found else None
