"""A lab: several hosts on this machine, each with its network, processes, clock and folders.

``README.md`` beside this file has a drawing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.hosts.switch import enter

ROOT = Path(__file__).parents[2]
PRIVATE = ("/tmp", "/var/tmp", "/home", "/dev/shm")
"""Folders that each host has for itself; all others are those of this machine."""
_UNITS = {"ms": 1e-3, "s": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_NAMESPACES = ["--mount", "--uts", "--ipc", "--net", "--pid"]
_UNSHARE = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-euc"]
_WAITS = ["sleep", "3600"]
_BECOME = """
mount --make-rprivate /
hostname {name}
{mounts}
echo up
exec > /dev/null 2>&1
while :; do {waits}; done
"""
"""A shell is the first process: it takes the exit codes of those whose parents are gone."""


def quantity(text: str | float) -> float:
    """Seconds or bits a second: ``"20ms"``, ``"100mbit"``, or the number itself."""
    if not isinstance(text, str):
        return text
    found = re.fullmatch(r"([\d.]+)([a-z]+)", text)
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no quantity: write a number and one of {', '.join(_UNITS)}, such as 20ms")
    return float(found[1]) * _UNITS[found[2]]


class Host:
    """One computer of a lab."""

    def __init__(self, lab: Lab, name: str, address: str, link: dict[str, float]) -> None:
        self.lab, self.name, self.address, self._link = lab, name, address, link
        self.folder = lab.folder / name
        """Holds its private folders and its log."""
        self.init = 0
        """Number of its first process, as this machine counts; 0: the host is off."""
        self._clock: float | None = None

    def on(self) -> None:
        """Start the host: an empty process table, an empty ``/dev/shm``, another boot ID, the files that it had."""
        shutil.rmtree(self.folder / "dev/shm", ignore_errors=True)
        mounts = []
        for private in PRIVATE:
            place = self.folder / private[1:]
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o1777)
        for shared in self.lab.shared:
            if any(shared.is_relative_to(private) for private in PRIVATE):
                inside = self.folder / str(shared)[1:]
                inside.mkdir(parents=True, exist_ok=True)
                mounts.append((shared, inside))
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        mounts += [
            (self.folder / "boot_id", "/proc/sys/kernel/random/boot_id"),
            (self.lab.folder / "hosts", "/etc/hosts"),
            (self.lab.folder / "resolv.conf", "/etc/resolv.conf"),
            *((self.folder / private[1:], private) for private in reversed(PRIVATE)),
        ]
        lines = [f"mount --rbind {shlex.quote(str(what))} {shlex.quote(str(where))}" for what, where in mounts]
        script = _BECOME.format(name=self.name, mounts="\n".join(lines), waits=" ".join(_WAITS))
        self.init = self.lab.tell("start", command=[*_UNSHARE, script], address=self.address, **self._link)

    def off(self) -> None:
        """Take its power: every process is gone at once, and nobody is told."""
        init, self.init = self.init, 0
        if init:
            os.kill(init, signal.SIGKILL)
            with contextlib.suppress(psutil.NoSuchProcess):
                while psutil.Process(init).status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.01)
            self.lab.tell("unplug", address=self.address)

    def reboot(self) -> None:
        self.off()
        self.on()

    def link(self, **values: str | float) -> None:
        self._link |= {name: quantity(value) for name, value in values.items()}
        self.lab.tell("shape", address=self.address, **self._link)

    @property
    def clock(self) -> float | None:
        """Seconds that its clock is ahead. Processes that start later have such a clock; setting it again moves it."""
        return self._clock

    @clock.setter
    def clock(self, ahead: float) -> None:
        if self._clock is None:
            source, library = Path(__file__).with_name("clock.c"), self.folder / "tmp/clock.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=120)
        self._clock = ahead
        with (self.folder / "tmp/clock").open("r+b" if (self.folder / "tmp/clock").exists() else "wb") as file:
            file.write(struct.pack("q", int(ahead * 1e9)))

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return os.environ | {"HOME": "/home", "TMPDIR": "/tmp", "PYTHONPATH": str(ROOT)} | dict(more)

    def command(self, *command: str | Path) -> list[str]:
        assert self.init, f"host {self.name} is off"
        enter = ["nsenter", "--target", str(self.init), *_NAMESPACES]
        clock = [] if self._clock is None else ["LD_PRELOAD=/tmp/clock.so", "LAB_CLOCK=/tmp/clock"]
        return [*enter, "--", "env", "--chdir=/home", *clock, *map(str, command)]

    def start(self, *command: str | Path, env: Mapping[str, str] = {}, log: str = "log") -> Process:
        return Process(self, log, command, env)

    def python(self, *arguments: str | Path, env: Mapping[str, str] = {}, log: str = "log") -> Process:
        return self.start(sys.executable, "-m", *arguments, env=env, log=log)

    def run(self, *command: str | Path, env: Mapping[str, str] = {}, timeout: float = 600) -> str:
        done = subprocess.run(
            self.command(*command), env=self.environment(env), capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, (self.name, command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Those that run there now, beside its first; with a word of their command."""
        found, space = [], Path(f"/proc/{self.init}/ns/pid").readlink()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = (
                    process.pid != self.init
                    and process.cmdline() != _WAITS
                    and Path(f"/proc/{process.pid}/ns/pid").readlink() == space
                )
                if ours and process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def forward(self, port: int) -> int:
        """Make a port of the host reachable from this machine; returns the port of 127.0.0.1 here.

        It is the same one where that is free: a home's own servers answer under their own address alone.
        """
        try:
            listening = socket.create_server(("127.0.0.1", port))
        except OSError:
            listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_forward, args=(listening, self.init, port), daemon=True).start()
        return int(listening.getsockname()[1])


class Process(subprocess.Popen[bytes]):
    """A process on a host; signals reach the process itself, not the command that entered the host."""

    def __init__(self, host: Host, log: str, command: Sequence[str | Path], env: Mapping[str, str]) -> None:
        self.host = host
        self.log = host.folder / log
        with self.log.open("ab") as file:
            super().__init__(
                host.command(*command), env=host.environment(env), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def send_signal(self, sig: int) -> None:
        for inner in psutil.Process(self.pid).children() if self.poll() is None else []:
            inner.send_signal(sig)


class Lab:
    """Hosts named ``h1``, ``h2``, ... on a network of their own.

    Everything ends with the ``with`` statement, and also when this process dies: the hosts are namespaces without
    names, and the kernel removes them with their last process.

    Args:
        folder: for the hosts' private folders.
        hosts: how many.
        delay, rate, loss: of each host's cable: the time that a packet needs to another host (:func:`quantity`), bits a
            second in each direction (0: as fast as it goes), share of packets that are lost.
        shared: folders of this machine that all hosts see under the same path.
        clocks: seconds that the clock of a host is ahead, by its name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hosts: int,
        delay: str | float = 0.0,
        rate: str | float = 0.0,
        loss: float = 0.0,
        shared: Sequence[str | Path] = (),
        clocks: Mapping[str, float] = {},
    ) -> None:
        self.folder = folder.resolve()
        needed = (ROOT, Path(sys.prefix))  # the checkout may lie in /tmp
        self.shared = [Path(each).resolve() for each in (*shared, *needed)]
        self.folder.mkdir(parents=True, exist_ok=True)
        link = {"delay": quantity(delay), "rate": quantity(rate), "loss": loss}
        addresses = {f"h{number}": f"10.31.0.{number}" for number in range(1, hosts + 1)}
        self._hosts = {name: Host(self, name, address, dict(link)) for name, address in addresses.items()}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        self._answers = threading.Lock()
        self._log = self.folder / "switch.log"
        with self._log.open("wb") as log:
            self._switch = subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.switch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, cwd=ROOT,
            )  # fmt: skip
        try:
            for name, host in self._hosts.items():
                host.on()
                if name in clocks:
                    host.clock = clocks[name]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def tell(self, what: str, **values: Any) -> Any:
        assert self._switch.stdin is not None and self._switch.stdout is not None
        with self._answers:
            self._switch.stdin.write(json.dumps({"do": what} | values) + "\n")
            self._switch.stdin.flush()
            answer = json.loads(self._switch.stdout.readline() or '{"error": "the switch is gone"}')
        if "error" in answer:
            raise OSError(f"the lab cannot {what}: {answer['error']}; {self._log.read_text()[-500:]}")
        return answer["done"]

    def cut(self, *names: str) -> None:
        for name in names:
            self._both_ways("cut", name)

    def heal(self, *names: str) -> None:
        for name in names or self._hosts:
            self._both_ways("heal", name)

    def _both_ways(self, what: str, name: str) -> None:
        everybody, one = [host.address for host in self], [self[name].address]
        self.tell(what, sources=one, targets=everybody)
        self.tell(what, sources=everybody, targets=one)

    def close(self) -> None:
        for host in self:
            if host.init:
                host.off()
        assert self._switch.stdin is not None and self._switch.stdout is not None
        self._switch.stdin.close()
        self._switch.wait(60)
        self._switch.stdout.close()


def missing() -> str:
    """Why no lab can be made on this machine; empty where one can."""
    programs = [program for program in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(program) is None]
    if os.geteuid() or programs or not Path("/dev/net/tun").exists():
        return f"a lab of hosts needs root, /dev/net/tun, util-linux and iproute2 {programs or ''}"
    try:
        subprocess.run([*_UNSHARE, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return f"a lab of hosts needs a kernel that lets root make namespaces: {error}"
    return ""


def _forward(listening: socket.socket, init: int, port: int) -> None:
    enter(init)  # this thread alone; what listens stays where it was made
    while True:
        here, _ = listening.accept()
        try:
            there = socket.create_connection(("127.0.0.1", port))
        except OSError:  # nobody listens there: the caller is to hear that
            here.close()
            continue
        for one, other in ((here, there), (there, here)):
            threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
