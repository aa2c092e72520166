"""The Prefect server of a home: started by the first study that needs it, shared by all, ended after the last one.

Files in ``HOME/prefect``, with the name of the host. The kernel gives locks back whatever ends a process, ``kill -9``
included.

    server-HOST.json  locked by the server process while it lives; holds its address, password and process number
    users-HOST.lock   locked, shared, by all who use the server. The server asks for it exclusively, twice a second, and
                      ends once it has it: no study begins to use a server that is ending
    database.lock     locked by the server whose database is ``prefect.db``. SQLite is no database of two hosts: on
                      shared storage a server of another host has ``prefect-HOST.db`` meanwhile
    server.log        what the server says
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import hpo_flows
from hpo_core.model import errors
from hpo_core.model.errors import StorageError
from hpo_core.security.masking import is_secret_name
from hpo_core.security.private_files import LockFile, check_tree, open_private, private_folder
from hpo_flows.guarded_server import OwnPagesOnly, end_process, serve
from hpo_flows.prefect_api.connection import PrefectServerError, answer_of, client_environment

START_SECONDS = 120.0
"""Longest start of a server."""
_LOOK_SECONDS = 0.5
_CURE = "name a running server in PREFECT_API_URL, or run without Prefect: --no-prefect"
_OWN = ("PREFECT_", "HPO_", "MLFLOW_")
"""Variables with these prefixes, and secrets, are not passed on to the server: it has settings of its own."""


class SharedServer:
    """The Prefect server of the folder ``HOME/prefect``, on a free port of 127.0.0.1.

    Args:
        folder: holds its database, log, password and locks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.auth = ""
        """The password that a client, or a person in the UI, gives; ``USER:WORD``."""
        self.pid: int | None = None
        self._users: LockFile | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0
        self.log = folder / "server.log"
        self.secrets_file = folder / f"server-{socket.gethostname()}.json"
        """Holds the password."""

    @property
    def api_url(self) -> str:
        return f"{self.url}/api"

    def client_settings(self) -> dict[str, str]:
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
        self._users = self._lock(f"users-{socket.gethostname()}.lock")
        self._is_known()

    def wait(self) -> None:
        """Return when the server answers.

        Raises:
            PrefectServerError: it ended, or does not answer within ``START_SECONDS``.
        """
        deadline = time.monotonic() + START_SECONDS
        while not (self._is_known() and self._answers()):
            if time.monotonic() > deadline:
                raise self._failed(f"does not answer after {START_SECONDS:g} s")
            time.sleep(0.1)

    def close(self) -> None:
        """Use the server no more; it ends once nobody does. Safe to call twice."""
        users, self._users = self._users, None
        if users is not None:
            users.close()

    def _is_known(self) -> bool:
        # True if a server lives whose address is known; where none lives, one is launched.
        assert self._users is not None
        if not self._users.take(fcntl.LOCK_SH):
            return False  # the one that lives is ending
        with contextlib.closing(self._lock(self.secrets_file.name)) as lock:
            if lock.take(fcntl.LOCK_EX):
                if self._process is not None:
                    raise self._failed(f"ended with exit code {self._process.wait()}")
                self._launch(lock)
                return True
            try:
                known = json.loads(lock.read())
            except ValueError:  # it is being launched
                return False
        self.url, self.auth, self.pid = known["url"], known["auth"], known["pid"]
        return True

    def _launch(self, lock: LockFile) -> None:
        # Start a server that inherits its socket and its locks: nobody can take them in between.
        lock.write("")
        database = self._lock("database.lock")
        with socket.socket() as bound, contextlib.closing(database), open_private(self.log, "ab") as log:
            name = "prefect.db" if database.take(fcntl.LOCK_EX) else f"prefect-{socket.gethostname()}.db"
            bound.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            self.auth = f"hpo:{secrets.token_urlsafe(24)}"
            self._log_begin = os.fstat(log.fileno()).st_size
            given = (bound.fileno(), lock.fd, database.fd)
            users = str(self.folder / f"users-{socket.gethostname()}.lock")
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpo_flows.prefect_api.shared_server", users, *map(str, given)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(name),
                cwd=self.folder,  # settings of Prefect in the user's folder are not those of this server
                pass_fds=given,
                umask=0o077,
                start_new_session=True,
            )
        self.pid = self._process.pid
        lock.write(json.dumps({"url": self.url, "auth": self.auth, "pid": self.pid}))

    def _environment(self, database: str) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(_OWN) and not is_secret_name(name)
        }
        # where this code is imported from: one folder once installed, two in a checkout
        code = dict.fromkeys((str(Path(str(hpo_flows.__file__)).parents[1]), str(Path(errors.__file__).parents[2])))
        return (
            inherited
            | self.client_settings()
            | {
                "PYTHONPATH": os.pathsep.join([*code, *filter(None, [inherited.get("PYTHONPATH")])]),
                "PREFECT_SERVER_API_HOST": "127.0.0.1",
                "PREFECT_SERVER_API_AUTH_STRING": self.auth,
                "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
                # by both names that a browser may use
                "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"{self.url},{self.url.replace('127.0.0.1', 'localhost')}",
                "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{self.folder / database}",
                "PREFECT_SERVER_UI_API_URL": self.api_url,
                "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(self.folder / "ui"),  # site-packages may be read-only
                "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
                "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
                "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",  # the end of a study waits for it
            }
        )

    def _answers(self) -> bool:
        # True if this address takes this password: after a `kill -9` the file names a server that is gone.
        try:
            return answer_of(self.api_url, self.auth, seconds=2) == 200
        except PrefectServerError:
            return False

    def _failed(self, how: str) -> PrefectServerError:
        self.close()
        with open_private(self.log, "rb") as log:
            log.seek(self._log_begin)
            said = log.read().decode(errors="replace")[-1500:].strip()
        ends = f"ends:\n{said}\n" if said else "is empty. "
        return PrefectServerError(
            f"The Prefect server of this study (process {self.pid}) {how}. Its log ({self.log}) {ends}Mend that, "
            f"{_CURE}."
        )

    def _lock(self, name: str) -> LockFile:
        needed_by = "the Prefect server of this home"
        return LockFile(self.folder / name, needed_by, error=PrefectServerError, cure=_CURE)


def _end_when_unused(users: str) -> None:
    # End this process once nobody uses it; the lock is kept to the end, so no new user begins.
    lock = LockFile(Path(users), "this server")
    while not lock.take(fcntl.LOCK_EX):
        time.sleep(_LOOK_SECONDS)
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} nobody uses this server any more: it ends", flush=True)
    end_process()


def _serve_prefect(users: str, bound: int, *locks: int) -> None:
    """Serve Prefect until nobody uses this process.

    Args:
        bound: the socket.
        locks: inherited, and passed on to nobody.
    """
    for given in (bound, *locks):
        os.set_inheritable(given, False)
    threading.Thread(target=_end_when_unused, args=(users,), daemon=True).start()
    from prefect.server.api.server import create_app

    serve(lambda port: OwnPagesOnly(create_app(), port, "Prefect server"), bound, timeout_keep_alive=30)


if __name__ == "__main__":
    _serve_prefect(sys.argv[1], *map(int, sys.argv[2:]))
