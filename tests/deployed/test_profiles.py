"""The files of deployments/ as far as tools that are here can judge them; what is absent is skipped."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpo_flows.deployed.permissions import Permissions
from hpo_flows.deployed.register import DEPLOYMENTS, POOL_TEMPLATE
from tests.flows.conftest import ROOT

FOLDER = ROOT / "deployments"


def test_every_deployment_names_a_flow_that_can_be_imported() -> None:
    listed = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]
    assert {"tune", "resume", "rerun"} <= {entry["name"] for entry in listed}
    for entry in listed:
        module, _, name = entry["entrypoint"].partition(":")
        found = getattr(importlib.import_module(module), name)
        assert (found.name, entry["name"], entry["work_pool"]["name"]) == (entry["name"], found.name, "hpo")
        assert entry["enforce_parameter_schema"] and entry["pull"] == []


def test_the_pool_takes_no_code_from_a_run() -> None:
    template = json.loads(POOL_TEMPLATE.read_text())
    assert set(template["variables"]["properties"]) == {"name"}
    job = template["job_configuration"]
    assert "{{" not in json.dumps({**job, "name": ""})
    assert "env" not in job, "Prefect's worker merges the environment a run asks for into a mapping that is there"


def sourced(folder: Path, shell: str = "bash") -> dict[str, str]:
    """The local profile as a shell in ``folder`` reads it."""
    script = f"set -a; . {FOLDER / 'local' / 'environment'}; exec env -0"
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run([shell, "-c", script], cwd=folder, env=clean, capture_output=True, check=True, text=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_local_environment_makes_a_password_of_its_own_once(shell: str, tmp_path: Path) -> None:
    first, again = (sourced(tmp_path, shell)["PREFECT_API_AUTH_STRING"] for _ in range(2))
    word = first.removeprefix("hpo:")
    assert len(word) == 48 and first == again
    kept = tmp_path / ".hpo" / "prefect-password"
    assert kept.read_text() == word and kept.stat().st_mode & 0o077 == 0
    (tmp_path / "other").mkdir()
    assert sourced(tmp_path / "other")["PREFECT_API_AUTH_STRING"] != first


def test_local_environment_keeps_prefects_files_in_the_project(tmp_path: Path) -> None:
    """Its server once shared ~/.prefect, and the database there, with every other one of this user."""
    script = (
        "from prefect.settings import get_current_settings as now\n"
        "print(now().home, now().server.database.connection_url.get_secret_value())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd="/", env=os.environ | sourced(tmp_path), capture_output=True, text=True
    )
    home, database = done.stdout.split()
    assert Path(home) == tmp_path / ".hpo" / "prefect-server" and f"///{home}/" in database, done
    assert not (tmp_path / ".prefect").exists()


def assert_closed_to_other_pages(settings: dict[str, Any]) -> None:
    """What a Prefect server has by default: no password, no CSRF tokens, every origin."""
    assert settings["PREFECT_SERVER_API_AUTH_STRING"].startswith("hpo:")
    assert settings["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    origins = settings["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
    assert origins == ["http://127.0.0.1:4200", "http://localhost:4200"]


def test_servers_of_the_profiles_are_closed_to_other_pages(tmp_path: Path) -> None:
    settings = sourced(tmp_path)
    assert_closed_to_other_pages(settings)
    assert settings["PREFECT_API_AUTH_STRING"] == settings["PREFECT_SERVER_API_AUTH_STRING"]
    assert_closed_to_other_pages(services()["prefect"]["environment"])
    server = services()["prefect"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"]
    for name in ("deploy", "hpo-worker"):
        assert services()[name]["environment"]["PREFECT_API_AUTH_STRING"] == server
    for profile in ("kubernetes", "slurm"):
        text = (FOLDER / profile / "README.md").read_text()
        for name in ("API_AUTH_STRING", "CSRF_PROTECTION_ENABLED=true", "CORS_ALLOWED_ORIGINS="):
            assert f"PREFECT_SERVER_{name}" in text


def test_local_environment_allows_the_examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = sourced(tmp_path)
    monkeypatch.chdir(ROOT)
    permissions = Permissions.of_environment(settings | {"HPO_IMPORT_FOLDERS": str(ROOT)})
    assert "digits/study.yaml" in permissions.study_files()
    permissions.load("digits/study.yaml")
    assert settings["PREFECT_SERVER_API_HOST"] == "127.0.0.1"


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose" / "compose.yaml").read_text())["services"]
    return found


def test_compose_publishes_on_this_machine_only() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert len(ports) == 3 and all(port.startswith("127.0.0.1:") for port in ports)
    commands = " ".join(str(service.get("command", "")) for service in services().values())
    assert "PASSWORD" not in commands, "a command line is there for everybody to read"


STAND_IN = """#!/bin/bash
[ "$1" = deploy ] && exit
trap 'echo took its leave; exit 0' TERM
echo "$@"
for _ in $(seq 12000); do sleep 0.05; done
"""


def told_that_time_ends(script: Path, folder: Path, *, half_written: str = "") -> str:
    """What a stand-in, which the batch script starts, says when Slurm sends the batch shell alone a SIGTERM.

    Args:
        half_written: what the script says of the scheduler's file where it reads it while it is written.
    """
    (folder / "bin").mkdir()
    (folder / "bin" / "activate").write_text(f"PATH={folder / 'bin'}:$PATH\n")
    for name in ("dask", "hpo"):
        (folder / "bin" / name).write_text(STAND_IN)
        (folder / "bin" / name).chmod(0o755)
    (folder / "bin" / "python").symlink_to(sys.executable if script.suffix == ".sbatch" else folder / "bin" / "dask")
    written = '{"address": "tcp://node:8786"}'
    (folder / "dask-scheduler.json").write_text(written[:9] if half_written else written)
    settings = {"HPO_HOME": str(folder), "HPO_VENV": str(folder), "PREFECT_API_URL": "-", "HPO_ALLOWED_OBJECTIVES": "-"}
    batch = subprocess.Popen(
        ["bash", str(script)], env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert batch.stdout is not None and batch.stderr is not None
    try:
        while half_written:
            said = batch.stderr.readline()
            assert said, f"the script ended without {half_written}"
            if half_written in said:
                break
        (folder / "dask-scheduler.json").write_text(written)
        assert "worker" in batch.stdout.readline()
        batch.send_signal(signal.SIGTERM)
        return batch.communicate(timeout=600)[0]
    finally:
        batch.kill()


@pytest.mark.parametrize("name", ["workers", "controller"])
def test_slurm_tells_the_process_that_its_time_ends(name: str, tmp_path: Path) -> None:
    """``B:`` reaches the batch shell and nothing else; without it only job steps, of which there are none."""
    script = FOLDER / "slurm" / f"{name}.sbatch"
    assert "#SBATCH --signal=B:TERM@" in script.read_text()
    half_written = "JSONDecodeError" if name == "controller" else ""
    assert told_that_time_ends(script, tmp_path, half_written=half_written) == "took its leave\n"
