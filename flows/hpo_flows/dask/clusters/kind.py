"""Base class of a cluster kind: what the executor asks of a Dask cluster.

HPO_DASK_DASHBOARD        1: Dask's dashboard is served for clusters that the study starts; default 0
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import importlib
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import dask
import distributed
from distributed.deploy import spec
from distributed.deploy.adaptive import Adaptive
from distributed.security import Security

from hpo_core.model.errors import HpoError, SpecError
from hpo_core.security.private_files import private_folder
from hpo_core.spec.sections import ClusterSettings


class ProcessSettings:
    """Overrides of several studies, which begin and end in any order.

    The latest override of a value holds. What was there before the first one is put back after the last.

    Args:
        read: returns a value by its name.
        write: sets one.
    """

    def __init__(self, read: Callable[[str], Any], write: Callable[[str, Any], object]) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()
        self._overrides: list[dict[str, Any]] = []
        self._before: dict[str, Any] = {}

    def begin(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Override these values; returns the function that ends it."""
        override = dict(values)
        with self._lock:
            self._before |= {name: self._read(name) for name in override if name not in self._before}
            self._overrides.append(override)
            for name, value in override.items():
                self._write(name, value)
        return lambda: self._end(override)

    def _end(self, override: dict[str, Any]) -> None:
        with self._lock:
            self._overrides = [other for other in self._overrides if other is not override]
            held = {name: value for other in self._overrides for name, value in other.items()}
            for name in override:
                self._write(name, held[name] if name in held else self._before.pop(name))


dask_settings = ProcessSettings(
    lambda name: dask.config.get(name, None), lambda name, value: dask.config.set({name: value})
)
log_levels = ProcessSettings(
    lambda name: logging.getLogger(name).level, lambda name, level: logging.getLogger(name).setLevel(level)
)


class WorkersOfStudy(Adaptive):
    """Asks for workers while configurations wait, and gives idle ones back.

    Dask counts its tasks. A study has no more tasks than there are slots, so it says itself what it could use. How soon
    that is followed, Dask's own settings say: ``distributed.adaptive.interval``, and ``wait-count`` for idle workers.

    A worker is idle where no task is, and none whose result was not fetched yet: with it a checkpoint may come that
    lies nowhere else. That is asked anew at the moment in which the scheduler stops giving tasks to the worker. A
    worker that is about to come is given back once it is there and idle.

    Args:
        cluster: a ``distributed.SpecCluster``, whose scheduler runs in this process.
        kind: says how many.
        settings: of Dask's class.
    """

    def __init__(self, cluster: Any, *, kind: ClusterKind[Any], **settings: Any) -> None:
        self._kind = kind
        self._spec_cluster = cluster
        super().__init__(cluster, **settings)

    async def target(self) -> int:
        return self._kind.wanted

    async def workers_to_close(self, target: int) -> list[Any]:
        there = self._spec_cluster.scheduler.workers.values()
        idle = sorted((worker.name for worker in there if _is_idle(worker)), key=str)
        return idle[: max(0, len(there) - target)]

    async def scale_down(self, workers: Iterable[Any]) -> None:  # type: ignore[override]
        scheduler = self._spec_cluster.scheduler
        there = {worker.name: worker for worker in scheduler.workers.values()}
        idle = [name for name in workers if name in there and _is_idle(there[name])]
        # No other code runs between the line above and the scheduler's note that these take no more tasks. They are not
        # closed by it: asked by scheduler and nanny at once, a worker does not end until it is killed after 4 s.
        retired = await scheduler.retire_workers(names=idle, close_workers=False, remove=False)
        await self._spec_cluster.scale_down({worker["name"] for worker in retired.values()})


def _is_idle(worker: Any) -> bool:
    return not worker.processing and not worker.has_what


BEHIND = datetime.timedelta(days=1)
"""Time that the clock of a computer may be behind: Dask's own certificates begin at the moment they are made."""
VALID = datetime.timedelta(days=365)


def new_security() -> Any:
    """``distributed.Security`` of one cluster: a certificate that is its own authority, and its key, in memory only.

    Like ``Security.temporary()``, and valid from a day before.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    made = Security.temporary()  # type: ignore[no-untyped-call]
    key = serialization.load_pem_private_key(made.tls_client_key.encode(), None)
    first = x509.load_pem_x509_certificate(made.tls_client_cert.encode())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        first.issuer, first.subject, first.public_key(), first.serial_number, now - BEHIND, now + VALID,
        list(first.extensions),
    )  # fmt: skip
    text = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()  # type: ignore[arg-type]
    made.tls_ca_file = made.tls_client_cert = made.tls_scheduler_cert = made.tls_worker_cert = text
    return made


Settings = TypeVar("Settings", bound=ClusterSettings)

LOOPBACK = "127.0.0.1"
NO_PAGES: dict[str, list[str]] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
"""Dask's settings for web servers without pages: they listen whatever one says."""

CONNECTION_TIMEOUT = "distributed.comm.timeouts.tcp"
"""Dask's setting for the time after which a connection that is cut is given up, in each process by its own."""

CLOSE_SECONDS = 10.0
_RESTART_SECONDS = 30.0


class ClusterError(HpoError):
    """The Dask cluster cannot be started or reached."""


class ClusterKind(ABC, Generic[Settings]):
    """Starts, keeps and ends the Dask cluster of one study.

    Each kind is a subclass in a file of its own. Only :meth:`create` has to be written; the other methods say what
    holds for most kinds.

    Whoever reaches a port of Dask runs code: scheduler and workers that a kind starts talk within this process
    (:class:`ThreadKind`), or TLS with a certificate made for the study. A thread of a worker is a slot.

    Args:
        settings: ``spec.cluster``.
        study: name of the study.
        folder: absolute study folder; logs, keys and scratch files of a cluster go below it.
    """

    is_ours: ClassVar[bool] = True
    """False: scheduler and workers belong to others."""
    in_this_process: ClassVar[bool] = False
    """True if scheduler and workers are threads of the study's process, which other studies may share."""
    wait_seconds: ClassVar[float] = 60.0
    """Longest wait for workers at the start."""

    def __init__(self, settings: Settings, study: str, folder: str) -> None:
        self.settings = settings
        self.study = study
        self.folder = folder
        self.security: Any = None
        """``distributed.Security`` to join a scheduler with; None: as Dask's configuration says."""
        self.hops = False
        """True if models hop between its workers: each of them trains one at a time."""
        self.wanted = settings.size or 1
        """Workers that the study can use now, where their number follows it (``settings.scales``); else all of them."""
        self.cluster: Any = None
        """Result of :meth:`create`; None before the start, after the end, and for a scheduler that others started."""

    @abstractmethod
    def create(self) -> Any:
        """Start the cluster and return Dask's object for it; its workers come when they come.

        Raises:
            SpecError: the package that starts such clusters is not installed, or the settings do not fit this machine.
        """

    @property
    def scratch(self) -> Path:
        """Folder in which scheduler and workers make their scratch folders.

        Dask's default is a folder of this name in ``/tmp``. Another user who makes it first has files of this user
        emptied (its locks may be links), and code imported: each process of Dask imports from its scratch folder first.
        """
        return Path(self.folder) / "dask-scratch-space"

    @property
    def dask_settings(self) -> dict[str, Any]:
        pages = {} if self.dashboard else {key: list(routes) for key, routes in NO_PAGES.items()}
        return {"temporary-directory": str(self.scratch), **pages}

    @property
    def dashboard(self) -> bool:
        """True if Dask's dashboard is served: where the environment has ``HPO_DASK_DASHBOARD=1``."""
        return os.environ.get("HPO_DASK_DASHBOARD", "0") not in ("", "0")

    @property
    def starting_workers(self) -> int:
        return 1

    def connect(self) -> Any:
        """Start the cluster and return a client of its scheduler.

        Raises:
            ClusterError: it cannot be started.
            StorageError: the study folder is not this user's alone.
        """
        _end_quietly()
        private_folder(self.scratch, below=self.folder)
        try:
            self.cluster = self.create()
        except RuntimeError as error:  # Dask's own: a worker died while it came up, or took too long
            causes: list[BaseException] = [error]
            while (cause := causes[-1].__cause__) is not None:
                causes.append(cause)
            raise ClusterError(
                f"The {self.settings.kind} cluster of study {self.study!r} could not be started "
                f"({'; '.join(str(cause) for cause in causes)}). A worker was killed, or the machine is very busy: "
                "start again, with fewer workers if that does not help."
            ) from error
        self._import_nothing_from_scratch()
        return distributed.Client(self.cluster, set_as_default=False)  # type: ignore[no-untyped-call]

    def _import_nothing_from_scratch(self) -> None:
        """Take the scratch folders of Dask's servers in this process out of ``sys.path``, where Dask puts them first.

        Dask takes each out only if it is still the first when its server ends. A folder that is left there is deleted
        with its study, and whoever makes one of that name in ``/tmp`` has code imported.
        """
        for entry in list(sys.path):
            if Path(entry).is_relative_to(self.scratch):
                with contextlib.suppress(ValueError):  # Dask has just taken it out
                    sys.path.remove(entry)

    def no_workers(self, seconds: float) -> ClusterError:
        return ClusterError(
            f"The {self.settings.kind} cluster has no workers after {seconds:.0f} s; see its own logs and queue."
        )

    def check_start(self) -> None:
        """Called while the start waits for workers; by default nothing is known of them.

        Raises:
            ClusterError: none will come, however long one waits.
        """

    def news(self) -> str:
        """News of the workers for a person; each is returned once. Empty: none."""
        return ""

    def keep_wanted(self, cluster: Any) -> None:
        """Have Dask keep as many workers in ``cluster`` as :attr:`wanted` says from now on."""
        workers = self.settings.scales
        least, most = (self.wanted, self.wanted) if workers is None else (workers.min, workers.max)
        cluster.adapt(Adaptive=WorkersOfStudy, minimum=least, maximum=most, kind=self)

    async def replace_worker(self, client: Any, address: str) -> None:
        """End a worker that counts as gone; its nanny starts another one. Runs on the client's loop."""
        await client.restart_workers([address], timeout=_RESTART_SECONDS, raise_for_error=False)

    def close(self) -> None:
        """End the cluster; safe to call twice, and before anything was started."""
        if self.cluster is None:
            return
        loud = log_levels.begin({"distributed.scheduler": logging.CRITICAL})  # workers that are gone are no error now
        try:
            self.cluster.close(timeout=CLOSE_SECONDS)
        except Exception as error:
            logging.getLogger(__name__).debug("closing the cluster: %s: %s", type(error).__name__, error)
            self.cluster.shutdown_on_close = False  # tried; not again when the interpreter ends
        finally:
            loud()
            self.cluster = None
        self._import_nothing_from_scratch()  # of workers that came later


@functools.cache
def _end_quietly() -> None:
    # Let Dask's end of clusters at the interpreter's end say nothing.
    # It closes a cluster again whose start Ctrl-C interrupted, and fails where that one is ending already.
    close_clusters = getattr(spec, "close_clusters", None)
    if close_clusters is not None:
        atexit.unregister(close_clusters)
        atexit.register(_without_errors, close_clusters)


def _without_errors(close_clusters: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        close_clusters()


def scheduler_options(dashboard: bool) -> dict[str, Any]:
    """Options of a scheduler in this process: its web server listens on the loopback address only."""
    return {"dashboard": dashboard, "dashboard_address": f"{LOOPBACK}:0"}


def variables_elsewhere(settings: Mapping[str, object]) -> dict[str, str]:
    """Variables that give Dask's processes elsewhere these settings, and the time limit of connections as it is here.

    >>> variables_elsewhere({"distributed.worker.http.routes": []})
    {'DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP': '30s', 'DASK_DISTRIBUTED__WORKER__HTTP__ROUTES': '[]'}
    """
    passed = {CONNECTION_TIMEOUT: dask.config.get(CONNECTION_TIMEOUT), **settings}
    return {"DASK_" + name.upper().replace(".", "__").replace("-", "_"): str(value) for name, value in passed.items()}


def optional_package(module: str, kind: str, extra: str) -> Any:
    """Import the package that starts clusters of a kind.

    Raises:
        SpecError: it is not installed; names the extra that holds it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            f"cluster.kind = {kind!r} needs a package that is not installed here ({error}). Install it with "
            f"`pip install 'hpo-core[{extra}]'`, or use another kind of cluster."
        ) from None
