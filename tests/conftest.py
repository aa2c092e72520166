"""Shared by all tests: fake training, and an environment that leaves the user's home alone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from hpo_core import Study, StudySpec
from hpo_core.journal.protocol import Journal
from tests import stated_skips
from tests.contract_suites.fake_training import FakeTraining, completed, example_spec, failed, new_study
from tests.dask_processes import DaskProcesses

if TYPE_CHECKING:
    from hpo_flows.prefect_api.shared_server import SharedServer

__all__ = ["World", "completed", "failed", "fresh", "make_spec", "played"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stated-skips", action="store_true", help="fail for a skip that tests/stated_skips.txt lacks")


def pytest_configure(config: pytest.Config) -> None:
    """Begun in the background of a script, tests would inherit an ignored Ctrl-C, and pass it on to what they start."""
    if config.getoption("--stated-skips") and not hasattr(config, "workerinput"):  # the controller sees all reports
        config.pluginmanager.register(stated_skips.StatedSkips(stated_skips.patterns()), "stated-skips")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
"""An example may take any time: by default one of 200 ms fails, as it takes where the machine is busy or paused."""


LONG_FOLDERS = (
    "flows",
    "faults",
    "python",
    "deployed",
    "sharing",
    "security",
    "retraining",
    "mlflow",
    "docs",
    "install",
    "training",
    "samplers",
)
"""Tests of real services and processes. They begin first, so that no process is left with a long file at the end."""


SLOW_LIMIT = 1800
"""Seconds for a slow or browser test: it ends a test that hangs, and is far beyond what a busy machine needs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("browser"):
            stated = item.get_closest_marker("timeout")
            own = stated.args[0] if stated else 0
            item.add_marker(pytest.mark.timeout(max(own, SLOW_LIMIT)), append=False)
    order = {name: place for place, name in enumerate(LONG_FOLDERS)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(order)))


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same for each test; a command that one runs in this process may change import folders and handlers."""
    for name in ("HPO_HOME", "HPO_JOURNAL", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folders, handlers = list(sys.path), {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    sys.path[:] = folders
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_OURS = ("HPO_", "PREFECT_API_", "MLFLOW_TRACKING_")
"""Variables that begin so decide what a study does; libraries add others when they are imported, or start workers."""


def _process_state() -> dict[str, Any]:
    """What all tests of this process share."""
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "working folder": Path.cwd(),
        "sys.path": list(sys.path),
        "umask": mask,
        "signal handlers": {number: signal.getsignal(number) for number in _SIGNALS},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    } | {f"variable {name}": value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "_"))}


@pytest.fixture(autouse=True, scope="module")
def _leaves_the_process_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a module leaves behind makes tests of another one fail, in some orders only."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", "KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK"):
        os.environ.pop(name, None)  # set by an attempt, or by scikit-learn, in this process
    before = _process_state()
    yield
    after = _process_state()
    names = before.keys() | {name for name in after if name.removeprefix("variable ").startswith(_OURS)}
    changed = {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}
    assert not changed, f"{request.node.name} left (before, after): {changed}"


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[SharedServer]:
    from hpo_flows.prefect_api import shared_server

    server = shared_server.SharedServer(folder)
    try:
        server.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_server, "START_SECONDS", 900.0)  # a machine at a load of 20 needs three minutes
            server.wait()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """A Prefect server of our own: one for all processes of this run, for each costs as much as a worker.

    Tests find what is theirs in it by names of their own. Deployments have no such names: ``deployments_api``.
    """
    folder = tmp_path_factory.getbasetemp()
    with _serving((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prefect") as server:
        yield server


@pytest.fixture
def dask_processes(tmp_path: Path) -> Iterator[DaskProcesses]:
    found = DaskProcesses(tmp_path / "dask")
    yield found
    found.close()


@pytest.fixture(scope="session")
def prefect_api(prefect_server: SharedServer) -> dict[str, str]:
    """Environment that points at the server of all tests."""
    return prefect_server.client_settings()


@pytest.fixture(scope="module")
def deployments_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same of a server that no other file uses: a worker of the pool ``hpo`` takes everybody's runs."""
    with _serving(tmp_path_factory.mktemp("deployments") / "prefect") as server:
        yield server.client_settings()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrations take seconds: an MLflow store is made once, copied for every test."""
    from hpo_core.tracking.mlflow_client import open_client

    folder = tmp_path_factory.mktemp("mlflow")
    open_client(f"sqlite:///{folder / 'mlflow.db'}")
    return folder / "mlflow.db"


def make_spec(**changes: Any) -> StudySpec:
    """An ASHA study over three parameters, with any part replaced."""
    return example_spec(**({"study": "world"} | changes))


World = FakeTraining


def fresh(spec: StudySpec, journal: Journal | None = None, world: World | None = None) -> Study:
    """A new study on the virtual clock of ``world``."""
    return new_study(spec, journal, world)


def played(spec: StudySpec, world: World | None = None, *, steps: int | None = None) -> Study:
    """A new study that ``world`` has played to its end, or for so many reports."""
    world = world or World()
    study = fresh(spec, None, world)
    world.play(study, steps=steps)
    return study


@pytest.fixture
def study() -> Iterator[Study]:
    made = fresh(make_spec())
    yield made
    made.check()


os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
