"""The devices that a worker's jobs can share, and how much of each others use; looked at again and again.

Runs on the workers. A driver that does not answer must not keep a worker from its heartbeat, so a thread of its own
looks; everybody else reads what it saw last.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import psutil

from hpo_core.placement.gpus import Gpu, NoNvmlError, available_cores, control_groups, read_gpus
from hpo_core.training.child.processes import descendants, pages, resident

LOOK_SECONDS = 1.0
UNASKED_SECONDS = 300.0
"""Time after which a watch ends that nobody has asked: a study's process may go on for days after it."""
MISSES = 3
"""Number of looks in a row without an answer after which a device is gone; drivers miss single questions."""
CPU = "CPU"
"""Architecture of a computer whose processors are shared."""
_COST = 0.05
"""Part of the time that may go into asking what a process shares with others: about 1 ms for 100 MB."""
_parts: dict[int, tuple[float, float]] = {}
"""When to ask again, and what part of its memory is its own, by process id."""
_DEVICE_FILES = Path("/dev")

Facts = dict[str, dict[str, Any]]
"""Fields of a ``SeenDevice`` as plain values, by name of the device."""
Own = Mapping[str, Collection[int]]
"""Process ids of the attempts that run here, by folder of their study."""


class DeviceWatch:
    """Looks at the devices of this computer once a second, in a thread.

    They are its GPUs, if it has any, whether they answer now or not; else its processors and memory.

    Args:
        own: memory of these attempts and their children is not others' for the study that they are of.
        gpu: what the jobs of its workers see, as ``CUDA_VISIBLE_DEVICES`` names it; empty: what this process sees.
    """

    def __init__(self, own: Callable[[], Own], gpu: str = "") -> None:
        self._own = own
        self._gpu = gpu
        self._idle: dict[str, int] = {}
        """Bytes in use when last none of our attempts ran, by GPU."""
        self._missed: dict[str, int] = {}
        """Number of looks in a row at which a device that was there did not answer."""
        self.seen: Facts = {}
        self._had_gpu = False
        self._ended = threading.Event()
        self._asked = time.monotonic()
        self.problem = ""
        """Reason for which no GPU can be seen; empty: they can, or nobody asked."""

    def start(self) -> None:
        self.look()
        threading.Thread(target=self._go_on, name="hpo-devices", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def keep_on(self) -> bool:
        self._asked = time.monotonic()
        return not self._ended.is_set()

    def _go_on(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if time.monotonic() > self._asked + UNASKED_SECONDS:
                self.stop()
            self.look()

    def look(self) -> None:
        """Look now; where anything goes wrong, no device answered."""
        found: Facts = {}
        try:
            found, self.problem = self._found()
        except Exception as error:  # a thread that ended would leave what it saw last for ever
            said = f"Looking at the devices failed: {type(error).__name__}: {error}"
            if said != self.problem:
                logging.getLogger(__name__).warning("%s", said)
            self.problem = said
        self.seen = self._with_missed(found)

    def _found(self) -> tuple[Facts, str]:
        own = _with_descendants(self._own())
        found: Facts = {}
        problem = ""
        try:
            found = self._gpus(own)
        except NoNvmlError as error:
            problem = str(error)
        self._had_gpu = self._had_gpu or bool(found)
        if not found and self._offers_processors():
            found = {f"cpu:{socket.gethostname()}": computer(own)}
        return found, problem

    def _offers_processors(self) -> bool:
        visible = self._visible()
        hidden = visible is not None and visible.strip() in ("", "-1")
        return hidden or not (self._had_gpu or any(_DEVICE_FILES.glob("nvidia[0-9]*")))

    def _with_missed(self, found: Facts) -> Facts:
        self._missed = {name: self._missed.get(name, 0) + 1 for name in self.seen.keys() - found.keys()}
        kept = {name: self.seen[name] for name, misses in self._missed.items() if misses < MISSES}
        return found | {name: facts for name, facts in kept.items() if facts["gpu"] or not found}

    def _visible(self) -> str | None:
        return self._gpu or os.environ.get("CUDA_VISIBLE_DEVICES")

    def _gpus(self, own: Own) -> Facts:
        wanted = visible(read_gpus(), self._visible())
        cores = 1000 * available_cores()
        found: Facts = {}
        for gpu in wanted:
            used = gpu.memory - gpu.memory_free
            if not own:
                self._idle[gpu.uuid] = used
            found[gpu.uuid] = {
                "node": socket.gethostname(),
                "boot": _boot(),
                "architecture": gpu.architecture,
                "memory": gpu.memory,
                "used": used,
                "own": self._own_memory(gpu, used, own),
                "by_growth": not _told(gpu),
                "cores": cores,
                "gpu": True,
            }
        return found

    def _own_memory(self, gpu: Gpu, used: int, own: Own) -> dict[str, int]:
        # Bytes of our attempts on a GPU, by folder.
        # A container sees foreign process ids; then what came since we were idle, in equal parts for each process.
        if _told(gpu):
            listed = gpu.processes or ()
            return {folder: sum(memory or 0 for pid, memory in listed if pid in pids) for folder, pids in own.items()}
        grown = max(0, used - self._idle.get(gpu.uuid, 0))
        count = sum(map(len, own.values()))
        return {folder: grown * len(pids) // count for folder, pids in own.items() if pids}


def _told(gpu: Gpu) -> bool:
    listed = gpu.processes or ()
    told = all(memory is not None for _, memory in listed)
    return told and any(Path(f"/proc/{pid}").exists() for pid, _ in listed)


def visible(gpus: Collection[Gpu], setting: str | None) -> list[Gpu]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves: all without it, else by UUID (or its beginning) or number.

    Numbers are the driver's (``nvidia-smi``), as with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. As for CUDA, the first entry
    that names no GPU ends the list.
    """
    if setting is None:
        return list(gpus)
    found: list[Gpu] = []
    for word in setting.split(","):
        name = word.strip()
        match = [gpu for gpu in gpus if gpu.uuid.startswith(name) or (name.isdigit() and gpu.index == int(name))]
        if not name or not match:
            break
        found += [gpu for gpu in match[: 1 if not name.isdigit() else None] if gpu not in found]
    return found


def computer(own: Own) -> dict[str, Any]:
    """Processors and memory of this computer, or of the container that this process is in."""
    for ended in [pid for pid in list(_parts) if not psutil.pid_exists(pid)]:  # other watches have some of them
        _parts.pop(ended, None)
    total, available = psutil.virtual_memory()[:2]
    for group in control_groups():
        limit = _number(group / "memory.max")
        if limit is not None:
            held = max(0, (_number(group / "memory.current") or 0) - _reclaimable(group / "memory.stat"))
            total, available = min(total, limit), min(available, max(0, limit - held))
    used = max(0, total - available)
    return {
        "node": socket.gethostname(),
        "boot": _boot(),
        "architecture": CPU,
        "memory": total,
        "used": used,
        "own": {folder: sum(map(_own_bytes, pids)) for folder, pids in own.items()},
        "cores": 1000 * available_cores(),
        "gpu": False,
    }


def _boot() -> str:
    # The kernel's id of its start: tells computers of one name apart, and is the same in all containers of one.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no control group, or "max"
        return None


def _reclaimable(path: Path) -> int:
    try:
        facts = dict(line.split() for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(facts.get("inactive_file", 0)) + int(facts.get("active_file", 0))


def _own_bytes(pid: int) -> int:
    # Anonymous and shared memory of a process in bytes; of a page that n processes share, 1/n.
    try:
        held = resident(pid, swap=False)
    except OSError:
        return 0
    due, part = _parts.get(pid, (0.0, 1.0))
    now, began = time.monotonic(), time.thread_time()
    if now >= due:
        try:
            found = pages(pid)
        except OSError:  # it ended meanwhile
            found = None
        part = found.proportional / found.held if found is not None and found.held else 1.0
        _parts[pid] = now + (time.thread_time() - began) / _COST, part
    return int(part * held)


def _with_descendants(own: Own) -> dict[str, set[int]]:
    return {folder: {*pids, *(below for pid in pids for below in descendants(pid))} for folder, pids in own.items()}


_watches: dict[str, DeviceWatch] = {}
"""Watches by GPU: several workers may share this process."""
_starting = threading.Lock()


def watch_devices(own: Callable[[], Own], gpu: str = "") -> str:
    """Make this process look at its devices from now on; returns why no GPU can be seen, or nothing.

    Args:
        gpu: the only one to look at, of a worker that has it of its own; empty: all that this process sees.
    """
    with _starting:
        watch = _watches.get(gpu)
        if watch is None or not watch.keep_on():
            watch = _watches[gpu] = DeviceWatch(own, gpu)
            watch.start()
        return watch.problem


def seen_devices(gpu: str = "") -> Facts | None:
    """The devices that :func:`watch_devices` saw last; None before, and once nobody asked for long."""
    watch = _watches.get(gpu)
    return watch.seen if watch is not None and watch.keep_on() else None
