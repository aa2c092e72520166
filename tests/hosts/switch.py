"""The network of a lab: a process that carries packets between hosts, late, slowly, with losses, or not at all.

``python -m tests.hosts.switch`` reads one JSON command a line from its input and answers each with a line. It ends, and
every host with it, when its input does or the process that started it dies.

Each host has a TUN device, whose packets come here. No packet goes anywhere else, since nothing here knows another way.
``tc netem`` would do the same in the kernel, where the kernel has it; this needs TUN alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MTU = 9000
"""Bytes: large, as a packet costs this process some 20 us of processor time."""
_QUEUE_SECONDS = 0.2
"""Packets that would wait longer for a slow link are dropped, as by any switch."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x400454CA, 0x0001, 0x1000, 0x40000000, 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Link:
    """The cable of a host: what leaves it is late and may be lost; the rate is that of each direction."""

    device: int
    """Descriptor of the host's TUN device."""
    delay: float = 0.0
    rate: float = 0.0
    """Bits a second; 0: as fast as this process."""
    loss: float = 0.0
    out_free: float = 0.0
    in_free: float = 0.0
    """Until when the two directions are busy."""
    cut_from: set[str] = field(default_factory=set)
    """Addresses of hosts from which nothing arrives."""


def open_device(init: int, address: str) -> int:
    """Make the network device of the host whose first process this is; returns its descriptor."""
    ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(init)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN | _IFF_NO_PI))
        for command in (
            "link set lo up", f"address add {address}/24 dev eth0", f"link set eth0 mtu {MTU} up",
        ):  # fmt: skip
            subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    finally:
        _libc.setns(ours, _CLONE_NEWNET)
        os.close(ours)
    return device


def enter(process: int) -> None:
    """Let the calling thread use the network of a process from now on."""
    with Path(f"/proc/{process}/ns/net").open("rb") as namespace:
        if _libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def boot(command: list[str]) -> int:
    """Start the first process of a host by a command that runs it in namespaces of its own; returns its number."""
    starter = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert starter.stdout is not None
    if starter.stdout.readline().strip() != b"up":  # said by the first process once the folders are there
        starter.kill()
        raise OSError("a host does not start")
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    return int(children[0])


class Switch:
    """Carries packets between the links by their IPv4 addresses."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._dice = random.Random(31)
        self._late: list[tuple[float, int, int, bytes]] = []
        """Heap of (moment, number, device, packet)."""
        self._number = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin.buffer, selectors.EVENT_READ)

    def run(self) -> None:
        pending = b""
        while True:
            wait = None if not self._late else max(0.0, self._late[0][0] - time.monotonic())
            for key, _ in self._selector.select(wait):
                if key.data is not None:
                    self._read(key.data)
                    continue
                data = os.read(sys.stdin.fileno(), 65536)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._answer(json.loads(line))
            self._deliver()

    def _answer(self, command: dict[str, Any]) -> None:
        try:
            answer: Any = {"done": getattr(self, f"do_{command.pop('do')}")(**command)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    def do_start(self, command: list[str], address: str, delay: float, rate: float, loss: float) -> int:
        init = boot(command)
        link = Link(open_device(init, address), delay, rate, loss)
        if (old := self.links.get(address)) is not None:
            link.cut_from = old.cut_from
        self.links[address] = link
        self._selector.register(link.device, selectors.EVENT_READ, address)
        return init

    def do_unplug(self, address: str) -> None:
        link = self.links[address]
        with contextlib.suppress(KeyError, OSError):
            self._selector.unregister(link.device)
        self._late = [late for late in self._late if late[2] != link.device]
        heapq.heapify(self._late)
        os.close(link.device)
        link.device = -1

    def do_shape(self, address: str, **values: float) -> None:
        for name, value in values.items():
            setattr(self.links[address], name, value)

    def do_cut(self, sources: list[str], targets: list[str]) -> None:
        """Let nothing through from these addresses to those."""
        for target in targets:
            self.links[target].cut_from |= set(sources) - {target}

    def do_heal(self, sources: list[str], targets: list[str]) -> None:
        for target in targets:
            self.links[target].cut_from -= set(sources)

    def _read(self, address: str) -> None:
        link = self.links[address]
        for _ in range(64):  # then others have their turn
            try:
                packet = os.read(link.device, 65536)
            except BlockingIOError:
                return
            except OSError:  # the host is off
                with contextlib.suppress(KeyError):
                    self._selector.unregister(link.device)
                return
            if len(packet) < 20 or packet[0] >> 4 != 4:
                continue
            target = self.links.get(".".join(map(str, packet[16:20])))
            if target is None or target.device < 0 or address in target.cut_from:
                continue
            if link.loss and self._dice.random() < link.loss:
                continue
            self._carry(packet, link, target)

    def _carry(self, packet: bytes, source: Link, target: Link) -> None:
        now = moment = time.monotonic()
        for link, side in ((source, "out_free"), (target, "in_free")):
            if link.rate:
                begins = max(moment, getattr(link, side))
                if begins - moment > _QUEUE_SECONDS:
                    return
                moment = begins + len(packet) * 8 / link.rate
                setattr(link, side, moment)
        moment += source.delay
        if moment <= now:
            _write(target.device, packet)
            return
        self._number += 1
        heapq.heappush(self._late, (moment, self._number, target.device, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, device, packet = heapq.heappop(self._late)
            _write(device, packet)


def _write(device: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the host is off, or its queue is full
        os.write(device, packet)


def main() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.nice(-10)  # a switch does not wait for what its hosts compute
    Switch().run()


if __name__ == "__main__":
    main()
