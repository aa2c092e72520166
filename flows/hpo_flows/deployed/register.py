"""``hpo deploy`` and ``hpo worker``: deployments, and the process that runs them, on a Prefect server that is there.

Prefect's engine sends heartbeats while a flow runs: an automation calls runs Crashed whose heartbeats stop. The kernel
ends flow processes with their worker.

Prefect is imported where it is needed: its environment is set before.

HPO_WORKER_PID  set by ``hpo worker`` for its flow processes: the process of the worker
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
import yaml

import hpo_flows
from hpo_core.home import DATABASES, Home
from hpo_core.model.errors import HpoError
from hpo_core.model.file_urls import settled_database
from hpo_core.security.masking import without_credentials
from hpo_core.spec.study_yaml import in_one_line
from hpo_core.views.formatting import plural
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.prefect_api.connection import check_api, configured_api

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

DEPLOYMENTS = Path(hpo_flows.__file__).resolve().parent / "deployments" / "prefect.yaml"
"""Part of the package: containers install a wheel, and have no checkout."""
POOL_TEMPLATE = DEPLOYMENTS.with_name("process-pool.json")
POOL = "hpo"
HEARTBEAT_SECONDS = 30
"""The smallest that Prefect (3.8) takes; ``hpo worker`` sets it for the flows that it starts."""
LIMIT_SECONDS = 120.0
NO_HEARTBEAT = (
    f"No heartbeat for {LIMIT_SECONDS:.0f} s: its process and its worker are gone. Retry it, or run `resume`."
)
AUTOMATION = "hpo: flow runs without heartbeat"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_NEED_NO_PROCESS = ("Scheduled", "AwaitingRetry", "Paused", "Suspended")
_ENDED = ("Completed", "Failed", "Cancelled", "Crashed", "Skipped")
_PR_SET_PDEATHSIG = 1
WORKER = "HPO_WORKER_PID"
"""Environment variable that a worker sets for its flow processes."""


class DeployError(HpoError):
    """The deployments could not be registered."""


def deploy(file: Path | None = None) -> tuple[str, dict[str, str]]:
    """Make (or mend) the work pool and register every deployment of ``file``; doing it twice changes nothing.

    A file of one's own adds its deployments, such as a flow with parameters and a schedule, to the same work pool.

    Returns:
        The URL of the page that lists deployments; by name descriptions and schedules, as the file has them.

    Raises:
        PrefectServerError: no API answers.
        DeployError: there is no such file, or Prefect refused it.
    """
    _need_api()
    file = (file or DEPLOYMENTS).resolve()
    if not file.is_file():
        raise DeployError(f"{file}: no such file. Name a prefect.yaml with --file, or leave it out for our own.")
    environment = settled_environment()
    _make_pool()
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    done = subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise DeployError(f"`prefect deploy` refused {file}:\n{(done.stdout + done.stderr)[-3000:].strip()}")
    return _watch_pool(), {one["name"]: listing_of(one) for one in yaml.safe_load(file.read_text())["deployments"]}


def listing_of(deployment: Mapping[str, Any]) -> str:
    schedules = [f"schedule: {in_one_line(each)}" for each in deployment.get("schedules") or ()]
    return "  ".join(filter(None, [str(deployment.get("description", "")).strip().partition("\n")[0], *schedules]))


def _watch_pool() -> str:
    """Have runs of all deployments of the pool reported once their heartbeats stop; returns the page of these."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
    from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    found: list[UUID] = []
    with get_client(sync_client=True) as client:
        while page := client.read_deployments(work_pool_filter=of_pool, limit=200, offset=len(found)):
            found += [one.id for one in page]
        report_silent_runs(client, found)
    pages = PREFECT_UI_URL.value() or str(PREFECT_API_URL.value()).removesuffix("/api")
    return without_credentials(f"{pages}/deployments")


def report_silent_runs(
    client: SyncPrefectClient, deployments: Iterable[UUID], *, seconds: float = LIMIT_SECONDS
) -> None:
    """Make, or mend, the automation that calls runs of these deployments Crashed whose heartbeats stop."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    trigger = EventTrigger(
        after={_HEARTBEAT},
        expect={_HEARTBEAT, *(f"prefect.flow-run.{name}" for name in (*_NEED_NO_PROCESS, *_ENDED))},
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        match_related=ResourceSpecification(
            {"prefect.resource.id": [f"prefect.deployment.{one}" for one in deployments]}
        ),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        within=timedelta(seconds=seconds),
    )
    wanted = AutomationCore(
        name=AUTOMATION,
        description="Made by `hpo deploy`: a run whose process is gone is Crashed, and can be retried.",
        trigger=trigger,
        actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, message=NO_HEARTBEAT, force=False)],
    )
    if known := client.read_automations_by_name(AUTOMATION):
        client.update_automation(known[0].id, wanted)
    else:
        client.create_automation(wanted)


GRACE_SECONDS = 45.0
"""Time for studies to halt. The profiles give their worker 60 seconds and more."""


def start_worker() -> None:
    """Run a worker of the pool in this process until it is told to end.

    Raises:
        PrefectServerError: no API answers.
        NotAllowedError: nothing is allowed to run.
    """
    os.environ.update(settled_environment() | {WORKER: str(os.getpid())})
    _need_api()
    if not Permissions.of_environment().objectives:
        raise NotAllowedError(
            "HPO_ALLOWED_OBJECTIVES is not set, so every run would be refused. Name the packages whose training "
            "functions may be run, for example HPO_ALLOWED_OBJECTIVES=my_models."
        )
    _make_pool()
    from prefect.workers.process import ProcessWorker

    # begun in the background of a script they would be ignored here, and by all that is started from here
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _halt_studies)
    # Prefect keeps code in `runner_storage` of this folder; another user could put other code into the one of all
    tempfile.tempdir = str(Home().make_folder("worker"))
    asyncio.run(ProcessWorker(work_pool_name=POOL, create_pool_if_not_found=False).start())


def _halt_studies(_signal: int, _frame: object) -> None:
    """End this worker once its flow processes have halted their studies; the kernel kills those that take longer.

    In the middle of whatever it does: Prefect's own end kills its flows at once, and until then begins new ones.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C would end the halts themselves
        signal.signal(number, signal.SIG_IGN)
    flows = psutil.Process().children()
    halts = f"{plural(len(flows), 'run')} {'halts' if len(flows) == 1 else 'halt'}"
    how = f"{halts}, which may take {GRACE_SECONDS:.0f} s" if flows else "no run is going on"
    print(f"Ending: {how}.", flush=True)
    for flow in flows:
        with suppress(psutil.Error):  # it has just ended
            flow.terminate()
    psutil.wait_procs(flows, GRACE_SECONDS)
    os._exit(0)


def end_with_parent() -> None:
    """Have the kernel kill this process once the process that started it has ended, or now if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if (parent := os.environ.get(WORKER)) is not None and not psutil.pid_exists(int(parent)):
        os.kill(os.getpid(), signal.SIGKILL)


def settled_environment() -> dict[str, str]:
    """The environment with every path made absolute: a flow run starts in a folder of its own."""
    found = dict(os.environ)
    found["HPO_HOME"] = str(Home().folder)
    if "HPO_IMPORT_FOLDERS" not in found and os.pathsep in str(Path.cwd()):
        raise NotAllowedError(
            f"The working folder {str(Path.cwd())!r} has a {os.pathsep!r} in its path, which stands between the "
            "folders of HPO_IMPORT_FOLDERS. Work in another one, or set HPO_IMPORT_FOLDERS."
        )
    found.setdefault("HPO_IMPORT_FOLDERS", str(Path.cwd()))
    found.setdefault("PREFECT_WORKER_QUERY_SECONDS", "2")
    found["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = str(HEARTBEAT_SECONDS)
    found |= {name: settled_database(found[name]) for name in DATABASES if name in found}
    permissions = Permissions.of_environment(found)
    found["HPO_IMPORT_FOLDERS"] = os.pathsep.join(map(str, permissions.import_folders))
    if permissions.folder is not None:
        found["HPO_STUDY_FOLDER"] = str(permissions.folder)
    if permissions.data_folder is not None:
        found["HPO_DATA_FOLDER"] = str(permissions.data_folder)
    return found


def _need_api() -> None:
    if find_spec("prefect") is None:
        raise DeployError("Prefect is not installed. Install it with `pip install 'hpo-core[flows]'`.")
    api = configured_api()
    if api is None:
        raise DeployError(
            "No Prefect server is configured. Start one (`prefect server start --host 127.0.0.1`) and set "
            "PREFECT_API_URL=http://127.0.0.1:4200/api."
        )
    check_api(api, cure="")


def _make_pool() -> None:
    """Make the work pool, or set its template right.

    With Prefect's own template, whoever starts a run chooses its command and environment.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound

    template = json.loads(POOL_TEMPLATE.read_text())
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(POOL)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        else:
            client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=template))
