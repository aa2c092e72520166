"""The Prefect server of a home: started by the first study that needs it, shared by all, ended after the last one.

Files in ``HOME/prefect``, with the name of the host. The locks are ``flock``'s: the kernel gives them back whatever
ends a process, ``kill -9`` included.

    start-HOST.lock   held, exclusively and for a moment, by whoever looks for the server or starts it
    server-HOST.lock  held by the server process while it lives; its text is the server's process number
    users-HOST.lock   held, shared, by every controller that uses the server. The server asks for it exclusively, twice
                      a second, and ends once it has it; it keeps it to its end, so that no study begins to use a
                      server that is ending
    server-HOST.json  URL and password of the server, readable by its owner only
    database.lock     held, exclusively, by the server whose database is ``prefect.db``
    server.log        what the server says

A home on shared storage has a server on each host that drives a study. SQLite is no database of two hosts: while a
server of another host has ``prefect.db``, this host's has ``prefect-HOST.db``.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

import hpo_core
import hpo_flows
from hpo_core.model.errors import StorageError
from hpo_core.security.masking import is_secret_name
from hpo_core.security.private_files import LockFile, check_tree, private_folder
from hpo_flows.prefect_api.connection import PrefectServerError, client_environment

START_TIMEOUT = 300.0
"""Seconds that a server may take to start without progress, which is CPU time or lines of its log."""
MOST_TIMEOUTS = 10
"""A server that makes progress all the time is waited for so many times as long, and no longer."""
_PROGRESS_CPU_SECONDS = 0.5
"""Less CPU time than this is what a server needs that only looks at its locks."""
_SAY_SECONDS = 20.0
_END_SECONDS = 10.0
_NEEDED_BY = "the Prefect server of this home"
_CURE = "name a running server in PREFECT_API_URL, or run without Prefect: --no-prefect"
_OWN = ("PREFECT_", "HPO_", "MLFLOW_")
"""Variables with these prefixes, and secrets, are not passed on to the server: it has settings of its own."""

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Progress(NamedTuple):
    log: int
    cpu: float


class SharedServer:
    """The Prefect server of the folder ``HOME/prefect``, on a free port of 127.0.0.1.

    Args:
        folder: holds its database, log, password and locks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.auth = ""
        """What a client, or a person in the UI, gives as password; ``USER:WORD``."""
        self._users: LockFile | None = None
        self._uses = False
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0

    @property
    def api_url(self) -> str:
        return f"{self.url}/api"

    @property
    def secrets_file(self) -> Path:
        """Holds the password."""
        return self._file("server", "json")

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """Process id of the server; None: it is not known."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._file("server", "lock").read_text())
        return None

    def client_settings(self) -> dict[str, str]:
        """Environment of another process that is to use this server."""
        return client_environment(self.folder) | {
            "PREFECT_API_URL": self.api_url,
            "PREFECT_API_AUTH_STRING": self.auth,
            "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        }

    def start(self) -> None:
        """Use the server that lives, or start one; returns before it answers.

        Raises:
            PrefectServerError: the folder's files cannot be written or locked, or something in it is a link or another
                user's: Prefect follows links.
        """
        try:
            private_folder(self.folder)
            check_tree(self.folder)
        except StorageError as error:
            raise PrefectServerError(f"{error} Or {_CURE}.") from None
        self._advance()

    def wait(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Return when the server answers. ``say`` is told now and then that it does not yet.

        Raises:
            PrefectServerError: it ended, or made no progress for ``START_TIMEOUT`` seconds.
        """
        began = moved = told = time.monotonic()
        seen = self._progress()
        while not (self._advance() and self._answers()):
            if self._process is not None and (code := self._process.poll()) is not None:
                raise self._failed(f"ended with exit code {code}")
            now, found = time.monotonic(), self._progress()
            if found.log != seen.log or abs(found.cpu - seen.cpu) >= _PROGRESS_CPU_SECONDS:
                moved, seen = now, found
            if now - moved > START_TIMEOUT:
                raise self._failed(f"does not answer, and made no progress for {START_TIMEOUT:g} s")
            if now - began > MOST_TIMEOUTS * START_TIMEOUT:
                raise self._failed(f"does not answer after {now - began:.0f} s")
            if now - told > _SAY_SECONDS:
                told = now
                say(f"The Prefect server is still starting: {self._doing()}.")
            time.sleep(0.1)

    def close(self) -> None:
        """Use the server no more, and wait for its end where nobody else uses it; safe to call twice."""
        users, self._users = self._users, None
        if users is None:
            return
        if self._uses:
            self._uses = False
            with contextlib.suppress(PrefectServerError):  # said when it was to be used
                self._leave(users)
        users.close()
        if self._process is not None:
            self._process.poll()

    def let_go(self) -> None:
        """Use the server no more, and wait for nothing: it ends itself once nobody uses it."""
        users, self._users = self._users, None
        self._uses = False
        if users is not None:
            users.close()

    # Which server.

    def _advance(self) -> bool:
        """One step towards a server; whether one lives that we use, though it may not answer yet."""
        if self._users is None:
            self._users = self._lock("users")
        if not self._uses:
            self._uses = self._users.take(fcntl.LOCK_SH)
        if not self._uses:
            return False  # the one that lives is ending
        with self._starting() as mine:
            if not mine:
                return False
            with contextlib.closing(self._lock("server")) as server:
                if not server.take(fcntl.LOCK_EX):
                    self.read_address()
                    return True
                if self._process is not None:
                    return False  # ours ended; never start a second one
                self._launch(server)
                return True

    @contextlib.contextmanager
    def _starting(self) -> Iterator[bool]:
        """Whether nobody else looks for the server or starts it while this is open."""
        with contextlib.closing(self._lock("start")) as lock:
            yield lock.take(fcntl.LOCK_EX)

    def read_address(self) -> None:
        """Note address and password of the server that runs now."""
        try:
            known = json.loads(self.secrets_file.read_text())
            self.url, self.auth = str(known["url"]), str(known["auth"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PrefectServerError(
                f"A Prefect server of this home runs (process {self.pid}), but {self.secrets_file}, which names it, "
                f"cannot be read ({error}). End that process, or run without Prefect: --no-prefect."
            ) from None

    def _launch(self, lock: LockFile) -> None:
        """Start a server that inherits ``lock`` and the socket: nobody can take its port in between."""
        database = LockFile(self.folder / "database.lock", _NEEDED_BY, error=PrefectServerError, cure=_CURE)
        with socket.socket() as reserved, contextlib.closing(database):
            name = "prefect.db" if database.take(fcntl.LOCK_EX) else f"prefect-{socket.gethostname()}.db"
            reserved.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
            self.auth = f"hpo:{secrets.token_urlsafe(24)}"
            try:
                os.ftruncate(lock.fd, 0)
                self._write_secrets()
                log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise PrefectServerError(_unusable(self.folder, error)) from None
            self._log_begin = os.fstat(log).st_size
            given = (reserved.fileno(), lock.fd, database.fd)
            try:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "hpo_flows.guarded_server",
                        "prefect",
                        *map(str, given),
                        self._file("users", "lock"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment(name),
                    cwd=self.folder,  # settings of Prefect in the user's folder are not those of this server
                    pass_fds=given,
                    umask=0o077,
                    start_new_session=True,
                )
            finally:
                os.close(log)
            os.pwrite(lock.fd, str(self._process.pid).encode(), 0)

    def _write_secrets(self) -> None:
        new = self.secrets_file.with_suffix(f".{os.getpid()}")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump({"url": self.url, "auth": self.auth}, file)
        new.replace(self.secrets_file)

    def _environment(self, database: str) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(_OWN) and not is_secret_name(name)
        }
        code = [*_code_folders(), *filter(None, [inherited.get("PYTHONPATH")])]
        return inherited | {
            "PYTHONPATH": os.pathsep.join(code),
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "DO_NOT_TRACK": "1",
            "PREFECT_HOME": str(self.folder),
            "PREFECT_API_URL": self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_AUTH_STRING": self.auth,
            "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(own_origins(self.url)),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{self.folder / database}",
            "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
            "PREFECT_SERVER_UI_API_URL": self.api_url,
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(self.folder / "ui"),  # site-packages may be read-only
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
            "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
        }

    def _leave(self, users: LockFile) -> None:
        """Let go of the server; it ends itself if nobody else holds on to it."""
        users.give_back()
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline and self._lives():
            if users.take(fcntl.LOCK_EX):  # nobody uses it; it will see that itself
                users.give_back()
            elif users.take(fcntl.LOCK_SH):  # others do
                users.give_back()
                return
            time.sleep(0.1)
        if users.take(fcntl.LOCK_EX) and self._lives() and (pid := self.pid) is not None:  # stopped, or it hangs
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _lives(self) -> bool:
        with self._starting() as mine:
            if not mine:
                return True
            with contextlib.closing(self._lock("server")) as server:
                return not server.take(fcntl.LOCK_EX)

    # How it does.

    def _answers(self) -> bool:
        try:
            with _opener.open(f"{self.api_url}/health", timeout=2):
                return True
        except (OSError, http.client.HTTPException):
            return False

    def _progress(self) -> _Progress:
        size, cpu = 0, 0.0
        with contextlib.suppress(OSError):
            size = self.log.stat().st_size
        with contextlib.suppress(psutil.Error):
            if (pid := self.pid) is not None:
                cpu = sum(psutil.Process(pid).cpu_times()[:2])
        return _Progress(size, cpu)

    def _doing(self) -> str:
        """What the server process is doing, as far as one can see from here."""
        if not self._uses:
            return "the one before it is ending"
        if (pid := self.pid) is None:
            return "its process is being started by another study"
        try:
            process = psutil.Process(pid)
            state = f"process {pid}, {process.status()}, {sum(process.cpu_times()[:2]):.1f} s of CPU time"
        except psutil.Error:
            return f"process {pid} is gone"
        return f"{state}, {self._last_line()}"

    def _last_line(self) -> str:
        lines = self._said().splitlines()
        return f"its log ends with {lines[-1]!r}" if lines else "its interpreter is still starting"

    def _said(self) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._log_begin)
            return file.read().decode(errors="replace")[-1500:].strip()
        return ""

    def _failed(self, how: str) -> PrefectServerError:
        doing, said = self._doing(), self._said()
        ends = f" Its log ({self.log}) ends:\n{said}\n" if said else " "
        self.close()
        return PrefectServerError(
            f"The Prefect server of this study {how} ({doing}).{ends}Mend that, name a running server in "
            "PREFECT_API_URL, or run without Prefect: --no-prefect."
        )

    def _lock(self, name: str) -> LockFile:
        return LockFile(self._file(name, "lock"), _NEEDED_BY, error=PrefectServerError, cure=_CURE)

    def _file(self, name: str, kind: str) -> Path:
        """With the host's name: each host has a server of its own."""
        return self.folder / f"{name}-{socket.gethostname()}.{kind}"


def own_origins(url: str) -> list[str]:
    """What a browser calls the pages of the server at ``http://127.0.0.1:PORT``."""
    return [url, url.replace("127.0.0.1", "localhost")]


def _unusable(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be used ({error.strerror or error}), which {_NEEDED_BY} needs. Choose another home with --home "
        f"or HPO_HOME, or {_CURE}."
    )


def _code_folders() -> list[str]:
    """Where this code is imported from: one folder once installed, two in a checkout."""
    places = (Path(hpo_flows.__file__).parents[1], Path(hpo_core.__file__).parents[1])
    return list(dict.fromkeys(str(place) for place in places))
