"""Two computers on this machine: network namespaces with a cable between them, each with a host name of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BECOME = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=60)


@dataclass
class Computers:
    """Names ``a`` and ``b``; what is started in them sees the same files and the other's address, and nothing else."""

    folder: Path
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = os.getpid() % 250
        self.address = {"a": f"10.213.{number}.1", "b": f"10.213.{number}.2"}
        self._space = {name: f"hpo-{os.getpid()}-{name}" for name in "ab"}
        self._cable = {name: f"hpo{os.getpid()}{name}" for name in "ab"}
        hosts = "".join(f"{self.address[name]} computer-{name}\n" for name in "ab")
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")

    def connect(self) -> None:
        for name in "ab":
            _ip("netns", "add", self._space[name])
        _ip("link", "add", self._cable["a"], "netns", self._space["a"], "type", "veth", "peer", self._cable["b"],
            "netns", self._space["b"])  # fmt: skip
        for name in "ab":
            _ip("-n", self._space[name], "address", "add", f"{self.address[name]}/30", "dev", self._cable[name])
            _ip("-n", self._space[name], "link", "set", "lo", "up")
            self.plug(name)

    def plug(self, name: str, how: str = "up") -> None:
        """Plug the cable in, or pull it (``down``): nothing tells the other side."""
        _ip("-n", self._space[name], "link", "set", self._cable[name], how)

    def within(self, name: str) -> list[str]:
        """What a command begins with that runs on a computer."""
        become = ["unshare", "--uts", "--mount", "sh", "-c", _BECOME, f"computer-{name}", str(self.folder / "hosts")]
        return ["ip", "netns", "exec", self._space[name], *become]

    def serve(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of Python on a computer."""
        command = [*self.within(name), sys.executable, "-m", *arguments]
        with (self.folder / "servers.log").open("ab") as log:
            self.servers.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT))
        return self.servers[-1]

    def close(self) -> None:
        for server in reversed(self.servers):
            server.terminate()
        for server in reversed(self.servers):
            server.wait(60)
        for name in "ab":
            subprocess.run(["ip", "netns", "delete", self._space[name]], capture_output=True, timeout=60)


def two_computers(folder: Path) -> Computers:
    """Connected ones; who may not make them skips."""
    made = Computers(folder)
    try:
        made.connect()
    except (OSError, subprocess.CalledProcessError) as error:
        made.close()
        pytest.skip(f"two computers on one machine need root and network namespaces: {error}")
    return made
