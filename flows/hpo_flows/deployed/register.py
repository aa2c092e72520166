"""``hpo deploy`` and ``hpo worker``: deployments, and the process that runs them, on a Prefect server that is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import yaml

import hpo_flows
from hpo_core.home import DATABASES, Home
from hpo_core.model.errors import HpoError
from hpo_core.model.file_urls import settled_database
from hpo_core.security.masking import without_credentials
from hpo_core.views.formatting import plural
from hpo_flows.deployed.flow_run_heartbeats import GRACE_SECONDS, HEARTBEAT_SECONDS, report_silent_runs
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.prefect_api.connection import check_api, configured_api

if TYPE_CHECKING:  # Prefect is imported where it is needed: its environment is set before
    from prefect.client.schemas.responses import DeploymentResponse

DEPLOYMENTS = Path(hpo_flows.__file__).resolve().parent / "deployments" / "prefect.yaml"
"""Part of the package: containers install a wheel, and have no checkout."""
POOL_TEMPLATE = DEPLOYMENTS.with_name("process-pool.json")
POOL = "hpo"


class DeployError(HpoError):
    """The deployments could not be registered."""


def deploy(file: Path | None = None) -> tuple[str, dict[str, str]]:
    """Make (or mend) the work pool and register every deployment of ``file``; doing it twice changes nothing.

    A file of one's own adds its deployments, such as a flow with parameters and a schedule, to the same work pool.

    Returns:
        The URL of the page that lists deployments; by name the first lines of their descriptions, and their schedules.

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
    names = [one["name"] for one in yaml.safe_load(file.read_text())["deployments"]]
    address, registered = _watch_pool()
    words = {one.name: listing_of(one) for one in registered}
    return address, {name: words.get(name, "") for name in names}


def listing_of(deployment: DeploymentResponse) -> str:
    described = [(deployment.description or "").strip().partition("\n")[0]]
    for each in deployment.schedules:
        when = each.schedule
        times = getattr(when, "cron", "") or getattr(when, "rrule", "")
        zone = getattr(when, "timezone", "") or "UTC"
        words = f"{times} {zone}" if times else f"every {getattr(when, 'interval', '')}"
        described.append(f"schedule: {words}{'' if each.active else ' (off)'}")
    return "  ".join(filter(None, described))


def _watch_pool() -> tuple[str, list[DeploymentResponse]]:
    """Have runs of all deployments of the pool reported once their heartbeats stop.

    Returns:
        The page of deployments, and these.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
    from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    found: list[DeploymentResponse] = []
    with get_client(sync_client=True) as client:
        while page := client.read_deployments(work_pool_filter=of_pool, limit=200, offset=len(found)):
            found += page
        report_silent_runs(client, [one.id for one in found])
    pages = PREFECT_UI_URL.value() or str(PREFECT_API_URL.value()).removesuffix("/api")
    return without_credentials(f"{pages}/deployments"), found


def start_worker() -> int:
    """Run a worker of the pool until told to end; returns its exit code.

    Told to end, the worker is killed: its flow processes then halt their studies by themselves, and are waited for.

    Raises:
        PrefectServerError: no API answers.
        NotAllowedError: nothing is allowed to run.
    """
    _need_api()
    environment = settled_environment()
    if not Permissions.of_environment(environment).objectives:
        raise NotAllowedError(
            "HPO_ALLOWED_OBJECTIVES is not set, so every run would be refused. Name the packages whose training "
            "functions may be run, for example HPO_ALLOWED_OBJECTIVES=my_models."
        )
    _make_pool()
    # begun in the background of a script they would be ignored here, and by all that is started from here
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    command = [sys.executable, "-m", "hpo_flows.deployed.flow_run_heartbeats", POOL]
    worker = subprocess.Popen(command, env=environment, start_new_session=True)
    flows: list[psutil.Process] = []
    try:
        return worker.wait()
    except KeyboardInterrupt:
        with suppress(psutil.NoSuchProcess):
            flows = psutil.Process(worker.pid).children()
        halts = f"{plural(len(flows), 'run')} {'halts' if len(flows) == 1 else 'halt'}"
        how = f"{halts}, which may take {GRACE_SECONDS:.0f} s" if flows else "no run is going on"
        print(f"Ending: {how}.", flush=True)
        return 0
    finally:
        worker.kill()
        deadline = time.monotonic() + GRACE_SECONDS
        while (living := [*filter(_is_alive, flows)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in living:
            process.kill()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # nobody reaps in a container whose first process this is
    except psutil.Error:
        return False


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
