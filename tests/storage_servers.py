"""Real servers of files for tests: S3 by moto in this process, SFTP by sshd; both on 127.0.0.1."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

KEY, SECRET = "AKIAOFTHETESTS", "a-secret-of-the-tests-8bd1"
_OBJECT = re.compile(r"/bucket/(.+)")


class S3:
    """A server that accepts requests which are signed with :data:`KEY`, and counts them and their bytes.

    Its objects are in this process: it can be stopped and started again.
    """

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        """By method."""
        self.read: Counter[str] = Counter()
        """Bytes of objects that were sent, by key."""
        self.written: Counter[str] = Counter()
        """Bytes of objects that were received, by key."""
        self.refused = 0
        """Requests without the right key."""
        self.port = 0
        self._server: Any = None

    def start(self) -> None:
        from werkzeug.serving import make_server

        self._server = make_server("127.0.0.1", self.port, self._answer, threaded=True)
        self.port = self._server.port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _answer(self, environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, place = environment["REQUEST_METHOD"], _OBJECT.fullmatch(environment["PATH_INFO"])
        with self._lock:
            self.requests[method] += 1
            if f"Credential={KEY}/" not in environment.get("HTTP_AUTHORIZATION", ""):
                self.refused += 1
                start("403 Forbidden", [("Content-Length", "0")])
                return [b""]
            if place is not None and method == "PUT":
                self.written[place[1]] += int(environment.get("CONTENT_LENGTH") or 0)
        if place is None or method != "GET":
            return self._application(environment, start)
        return self._counted(self._application(environment, start), place[1])

    def _counted(self, answer: Iterable[bytes], key: str) -> Iterator[bytes]:
        for part in answer:
            with self._lock:
                self.read[key] += len(part)
            yield part


@contextlib.contextmanager
def s3() -> Iterator[S3]:
    """Context manager: a server with an empty ``s3://bucket``; skips where moto or s3fs is not installed."""
    pytest.importorskip("moto.server", reason="moto is not installed (tests/requirements-slow.in has it)")
    pytest.importorskip("s3fs", reason="s3fs is not installed (tests/requirements-slow.in has it)")
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = S3()
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in server.environment().items():
                patched.setenv(name, value)
            import s3fs

            s3fs.S3FileSystem.clear_instance_cache()
            own = s3fs.S3FileSystem(skip_instance_cache=True)
            own.mkdir("bucket")
            server.requests.clear()
            try:
                yield server
            finally:
                own.rm("bucket", recursive=True)  # moto keeps it for the next server of this process
                own.invalidate_cache()
    finally:
        server.stop()


class Sftp:
    """An sshd that serves the files of this user.

    Args:
        folder: for its keys and configuration.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "user-key"
        folder.mkdir(mode=0o700)
        for name in ("user-key", "host-key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(f"{self.key}.pub", folder / "authorized")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "configuration").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host-key\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\nMaxStartups 100\nMaxSessions 100\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-D", "-e", "-f", self.folder / "configuration"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def stop(self) -> None:
        import psutil

        if self._process is None or self._process.poll() is not None:
            return
        processes = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def environment(self) -> dict[str, str]:
        return {"FSSPEC_SFTP_USERNAME": getpass.getuser(), "FSSPEC_SFTP_KEY_FILENAME": str(self.key)}


@contextlib.contextmanager
def sftp(folder: Path) -> Iterator[Sftp]:
    """Context manager: a server; skips where sshd or paramiko is not installed."""
    pytest.importorskip("paramiko", reason="paramiko is not installed (tests/requirements-slow.in has it)")
    if shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("sshd is not installed")
    server = Sftp(folder)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in server.environment().items():
                patched.setenv(name, value)
            from fsspec.config import conf, set_conf_env

            patched.setitem(conf, "sftp", {})
            set_conf_env(conf)
            yield server
    finally:
        server.stop()
