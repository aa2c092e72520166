"""A study on the hosts of a lab: scheduler, workers and controller are started as the documentation says."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hpo_core import Study
from hpo_core.journal.sql import open_journal
from hpo_core.model.errors import HpoError
from hpo_core.model.events import AttemptFailed, Entry, JobCompleted
from hpo_core.model.trial import Job, Rung
from hpo_core.replay.audit import audit
from hpo_core.training.attempt import run_attempt
from hpo_core.training.request import JobRequests
from tests.hosts.lab import ROOT, Lab, Process
from tests.hosts.objectives import traced
from tests.hosts.services import PostgreSQLHost
from tests.security.test_dask_ports import certificate
from tests.waiting import eventually

T = TypeVar("T")

PORT = 8786
TRACED = "tests.hosts.objectives:traced"
LIMIT = 900.0


class Cluster:
    """A Dask scheduler with TLS on one host, and workers on others.

    Args:
        folder: one that all hosts see.
        settings: of Dask's configuration, for all its processes.
    """

    def __init__(self, lab: Lab, folder: Path, *, scheduler: str, workers: str, settings: Mapping[str, str] = {}):
        self.lab, self.scheduler_host = lab, scheduler
        folder.mkdir(exist_ok=True)
        self._files = certificate(folder / "certificates")
        keys = {"tls_ca_file": "CA_FILE", "tls_cert": "CLIENT__CERT", "tls_key": "CLIENT__KEY"}
        self.client = {f"DASK_DISTRIBUTED__COMM__TLS__{keys[name]}": path for name, path in self._files.items()}
        """Environment of a controller."""
        self._settings = dict(settings)
        self.address = f"tls://{scheduler}:{PORT}"
        self.workers: dict[str, Process] = {}
        self.start_scheduler()
        for name in workers.split():
            self.start_worker(name)

    def _options(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={path}" for name, path in self._files.items()]

    def start_scheduler(self) -> None:
        self.scheduler = self.lab[self.scheduler_host].python(
            "dask.__main__", "scheduler", "--protocol", "tls", "--host", self.scheduler_host, "--port", str(PORT),
            "--no-dashboard", *self._options(), env=self._settings, log="scheduler.log",
        )  # fmt: skip

    def start_worker(self, name: str, **environment: str) -> None:
        self.workers[name] = self.lab[name].python(
            "dask.__main__", "worker", self.address, "--nthreads", "1", "--no-dashboard", "--host", name,
            "--local-directory", "/tmp/dask", *self._options(), env=self._settings | environment, log="worker.log",
        )  # fmt: skip

    def stop(self) -> None:
        for process in (self.scheduler, *self.workers.values()):
            process.terminate()
            process.wait(LIMIT)


class FarStudy:
    """A study whose controllers run on hosts of a lab.

    Args:
        home: home folder that all hosts see.
        cluster: where it trains.
        database: PostgreSQL of the journal; None: a file of the home.
        env: environment of its controllers.
        changes: of its settings; ``seconds`` a step and ``megabytes`` of a checkpoint go to the training function.
    """

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        database: PostgreSQLHost | None = None,
        env: Mapping[str, str] = {},
        name: str = "far",
        seconds: float = 1.0,
        megabytes: int = 0,
        **changes: Any,
    ) -> None:
        self.cluster, self.lab = cluster, cluster.lab
        self.name, self.home, self.trace = name, folder / "home", folder / f"trace-{name}"
        self.trace.mkdir()
        self.env = cluster.client | {"HPO_HOME": str(self.home)} | dict(env)
        self._database = database
        if database is not None:
            self.env["HPO_JOURNAL"] = database.url
        plain: dict[str, Any] = {
            "study": name,
            "objective": TRACED,
            "pythonpath": [str(ROOT)],
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": -1.0, "high": 1.0}},
            "constants": {"seconds": seconds, "megabytes": megabytes, "trace": str(self.trace)},
            "search": {"method": "random", "configs": 4, "max_resource": 10},
            "seed": 3,
            "cluster": {"kind": "address", "address": cluster.address},
            "tracking": {"mlflow": "off"},
            "prefect": "off",
        }
        self.file = folder / f"{name}.json"
        self.file.write_text(json.dumps(plain | changes))

    def hpo(self, host: str, *arguments: str | Path) -> Process:
        return self.lab[host].python("hpo_flows", *arguments, env=self.env, log=f"{self.name}.log")

    def tune(self, host: str) -> Process:
        return self.hpo(host, "tune", self.file)

    def resume(self, host: str, *options: str) -> Process:
        return self.hpo(host, "resume", self.name, *options)

    def until(self, condition: Callable[[], T], process: Process | None, seconds: float = LIMIT) -> T:
        return eventually(condition, seconds, process=process, said=lambda: process and process.said)

    def end(self, process: Process, code: int = 0, seconds: float = LIMIT) -> None:
        process.wait(seconds)
        assert process.returncode == code, (process.returncode, process.said)

    def entries(self) -> list[Entry]:
        url = str(self.home / "journal.db") if self._database is None else self._database.url_here
        if self._database is None and not Path(url).exists():
            return []
        journal = open_journal(url)
        try:
            return list(journal.entries(self.name))
        except HpoError:
            return []
        finally:
            journal.close()

    def events(self, kind: type[T]) -> list[T]:
        return [event for entry in self.entries() for event in entry.events if isinstance(event, kind)]

    def failures(self) -> list[tuple[str, str]]:
        return [(str(event.outcome), event.message) for event in self.events(AttemptFailed)]

    def results(self) -> dict[tuple[int, int], float]:
        return {(event.trial, event.resource): event.metrics["loss"] for event in self.events(JobCompleted)}

    def training(self, host: str = "", *, within: float = 1.5) -> list[str]:
        """Who trains now: ``HOST-PROCESS-TRIAL``."""
        return [name for name, since in self.traces().items() if name.startswith(host) and since < within]

    def traces(self) -> dict[str, float]:
        """Seconds since somebody trained, by ``HOST-PROCESS-TRIAL``."""
        now, found = time.clock_gettime(time.CLOCK_BOOTTIME), {}
        for path in self.trace.iterdir():
            if text := path.read_text():
                found[path.name] = now - float(text.split()[-1])
        return found

    def whole(self, lost: int | None = None) -> Study:
        """The study: finished, clean, nothing counted twice, nothing left of it on any host."""
        study = self.clean()
        assert study.status == "finished"
        if lost is not None:
            assert [outcome for outcome, _ in self.failures()] == ["lost"] * lost, self.failures()
        kept = {path.name for path in (self.home / "studies" / self.name / "checkpoints").rglob("*.safetensors")}
        live = {uri.rpartition("/")[2] for uri in study.checkpoints.uris}
        assert kept <= live, f"files of dead attempts: {kept - live}"
        self.until(lambda: not self.training(), None, 60)
        return study

    def clean(self) -> Study:
        """The study, finished or not: its record is clean, and nothing is counted twice.

        Each result is that of a training in one go, in this process, to the last bit.
        """
        entries = self.entries()
        report = audit(entries)
        assert report.clean, report.findings
        study = Study.from_entries(entries)
        study.check()
        counted = Counter((event.trial, event.resource) for event in self.events(JobCompleted))
        assert set(counted.values()) == {1}, "a result was counted twice"
        if study.spec.objective == TRACED:
            with tempfile.TemporaryDirectory() as folder:
                requests = JobRequests(study.spec, folder)
                for (number, resource), loss in self.results().items():
                    params = study.state.trials[number].params | {"seconds": 0.0, "trace": folder}
                    report = run_attempt(traced, requests.of(Job(number, 0, Rung(0, 0), resource, params, None)))
                    assert report.metrics["loss"] == loss, (number, resource, report)
        return study
