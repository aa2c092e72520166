"""Runs the Compose profile for real, as a release is checked: images, services, a study, a killed worker, its audit.

    python deployments/compose/try_it.py FOLDER

Needs root, 10 GB in FOLDER, and of Debian's packages docker.io, docker-compose and debootstrap. It starts a Docker
daemon of its own, with all its data in FOLDER, and ends it; no registry of images is asked (stand_in_images.py says
what takes their place). What FOLDER keeps makes the next time quicker. Exit status 0: the study ended and its audit is
clean.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stand_in_images import make_images

HERE = Path(__file__).resolve().parent
PORTS = (4200, 5000, 8787)
STUDY = "compose-trial"
_TERMINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class Trial:
    """A Docker daemon in a folder and the Compose project in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self._address = f"unix://{folder}/docker.sock"
        self.docker = ["docker", "--host", self._address]
        self._daemon: subprocess.Popen[bytes] | None = None
        passwords = {name: secrets.token_urlsafe(12) for name in ("POSTGRES_PASSWORD", "PREFECT_PASSWORD")}
        self._prefect = passwords["PREFECT_PASSWORD"]
        settings = folder / "environment"
        settings.touch(mode=0o600)
        settings.write_text("".join(f"{name}={value}\n" for name, value in passwords.items()) + "DASK_WORKERS=2\n")
        file = str(HERE / "compose.yaml")
        self._compose = ["docker-compose", "--env-file", str(settings), "--project-name", "hpo-trial", "--file", file]

    def say(self, line: str) -> None:
        """A line with the seconds since the start."""
        print(f"{time.monotonic() - self.began:6.0f} s  {line}", flush=True)

    def start_daemon(self) -> None:
        """Return when it answers."""
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "docker.pid"}
        limits = ["--default-ulimit", "nofile=4096:4096"]
        with (self.folder / "docker.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                ["dockerd", "--host", self._address, *limits, *(f"--{k}={self.folder / v}" for k, v in places.items())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        answers = [*self.docker, "info", "--format", "{{.ServerVersion}}"]
        self.wait(
            lambda: subprocess.run(answers, capture_output=True).returncode == 0, "the Docker daemon answers", 300
        )

    def compose(self, *command: str) -> str:
        """Output of a command of Docker Compose; it has to succeed."""
        environment = os.environ | {"DOCKER_HOST": self._address, "DOCKER_BUILDKIT": "0", "COMPOSE_HTTP_TIMEOUT": "600"}
        with (self.folder / "compose.log").open("ab") as log:
            done = subprocess.run(
                [*self._compose, *command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=log, text=True,
            )  # fmt: skip
            log.write(done.stdout.encode())
        if done.returncode:
            raise SystemExit(f"docker-compose {' '.join(command)} failed; see {self.folder / 'compose.log'}")
        return done.stdout

    def run(self, build: bool) -> None:
        """Build the image, start, train, kill, wait, audit."""
        if build:
            self.compose("build", "prefect")  # the image of all services
            self.say("image built from the Dockerfile")
        self.compose("up", "--detach")
        self.wait(lambda: len(self._workers()) == 2, "two Dask workers run", 1800)
        self.wait(lambda: "is running" in self._worker_status(), "the Prefect worker polls", 1800)
        self.say("all services run")
        file = ["--param", "file=digits/study.yaml", "--param", f"name={STUDY}"]
        cluster = ["--param", 'cluster={"address": "tcp://scheduler:8786"}']
        self.compose("exec", "-T", "hpo-worker", "prefect", "deployment", "run", "tune-file/tune-file", *file, *cluster)
        self.wait(lambda: self._jobs() >= 5, "five jobs are done", 1800)
        victim = self._workers()[0]
        subprocess.run([*self.docker, "kill", "--signal", "KILL", victim], check=True, stdout=subprocess.DEVNULL)
        self.say(f"study under way; Dask worker {victim[:12]} killed")
        self.wait(lambda: self._state() in _TERMINAL, "the flow run ends", 3600)
        self.say(f"flow run: {self._state()}")
        audit = self.compose("exec", "-T", "hpo-worker", "hpo", "audit", STUDY).strip()
        self.say(f"audit: {audit}")
        shown = json.loads(self.compose("exec", "-T", "hpo-worker", "hpo", "show", STUDY, "--json"))
        self.say(f"study: {json.dumps({key: shown[key] for key in ('status', 'trials', 'jobs') if key in shown})}")
        runs = _ask("http://127.0.0.1:5000/api/2.0/mlflow/experiments/search", {"max_results": 10}, {})
        self.say(f"MLflow's experiments: {', '.join(found['name'] for found in runs['experiments'])}")
        if self._state() != "COMPLETED" or not audit.startswith("clean"):
            raise SystemExit("the study did not end well")

    def stop(self) -> None:
        """Remove containers and volumes, and end the daemon."""
        if self._daemon is None:
            return
        if self._daemon.poll() is None:
            (self.folder / "services.log").write_text(self.compose("logs", "--no-color"))
            self.compose("down", "--volumes", "--timeout", "20")
            self._daemon.terminate()
            self._daemon.wait(120)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Return once it holds; ends the trial after so many seconds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {seconds:g} s: {what}; see {self.folder}/*.log")
            time.sleep(1.0)

    def _workers(self) -> list[str]:
        chosen = ["--filter", "label=com.docker.compose.service=dask-worker", "--format", "{{.ID}}"]
        return subprocess.run([*self.docker, "ps", *chosen], capture_output=True, text=True).stdout.split()

    def _worker_status(self) -> str:
        pool = self._ask_prefect("work_pools/hpo/workers/filter", {})
        return "is running" if any(worker.get("status") == "ONLINE" for worker in pool or ()) else ""

    def _jobs(self) -> int:
        shown = [*self._compose_exec(), "hpo", "show", STUDY, "--json"]
        done = subprocess.run(shown, capture_output=True, text=True, env=os.environ | {"DOCKER_HOST": self._address})
        return int(json.loads(done.stdout)["jobs"]) if done.returncode == 0 else 0

    def _compose_exec(self) -> list[str]:
        return [*self._compose, "exec", "-T", "hpo-worker"]

    def _state(self) -> str:
        asked = {"flow_runs": {"name": {"any_": [f"tune-{STUDY}"]}}}
        found = self._ask_prefect("flow_runs/filter", asked)
        return str(found[0]["state_type"]) if found else ""

    def _ask_prefect(self, path: str, body: dict[str, Any]) -> Any:
        """What the API answers, through its password and its CSRF tokens; None while it does not."""
        api, client = "http://127.0.0.1:4200/api", "compose-trial"
        login = base64.b64encode(f"hpo:{self._prefect}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Prefect-Csrf-Client": client}
        token = _ask(f"{api}/csrf-token?client={client}", None, headers)
        return token and _ask(f"{api}/{path}", body, headers | {"Prefect-Csrf-Token": token["token"]})


def _ask(url: str, body: dict[str, Any] | None, headers: dict[str, str]) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        asked = urllib.request.Request(url, data, headers | {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


def main() -> None:
    """Check what is needed, then try."""
    parser = argparse.ArgumentParser(description="Run the Compose profile for real.")
    parser.add_argument("folder", type=Path, help="for the daemon's data and the stand-in images")
    parser.add_argument("--keep-image", action="store_true", help="use the image that an earlier time built")
    given = parser.parse_args()
    folder: Path = given.folder.resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    needed = ("dockerd", "docker", "docker-compose", "debootstrap", "tar")
    if missing := [tool for tool in needed if shutil.which(tool) is None]:
        raise SystemExit(f"{', '.join(missing)}: not here; apt-get install docker.io docker-compose debootstrap")
    if os.geteuid():
        raise SystemExit("run it as root: it starts a Docker daemon")
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise SystemExit(f"port {port} of 127.0.0.1 is in use, and compose.yaml publishes it")
    folder.mkdir(parents=True, exist_ok=True)
    trial = Trial(folder)
    try:
        trial.start_daemon()
        trial.say("Docker daemon runs")
        make_images(folder, trial.docker)
        trial.say("stand-in images made")
        trial.run(build=not given.keep_image)
    finally:
        trial.stop()
    trial.say("done")


if __name__ == "__main__":
    main()
