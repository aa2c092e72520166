"""What a worker sees of the devices that its jobs share; a driver's answers are stood in for, ``/proc`` is real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core.placement import gpus as control_group
from hpo_core.placement.gpus import Gpu, NoNvmlError
from hpo_core.training import visible_devices
from hpo_core.training.visible_devices import DeviceWatch, computer, seen_devices, watch_devices
from tests.waiting import eventually

MB = 2**20
GIB = 2**30
HOLDS = (
    "import sys; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); print(flush=True); sys.stdin.read()"
)


@contextmanager
def holding(size: int, program: str = HOLDS) -> Iterator[int]:
    """A process that holds so many bytes until the end; its id."""
    with subprocess.Popen(
        [sys.executable, "-c", program.format(size=size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process.pid


def card(used: int, processes: tuple[tuple[int, int | None], ...] | None = None, uuid: str = "GPU-a") -> Gpu:
    name = "NVIDIA A100-SXM4-80GB"
    return Gpu(uuid=uuid, index=0, name=name, memory=80 * GIB, memory_free=80 * GIB - used, processes=processes)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Sets what the driver answers from now on: cards, or an error."""
    answer: list[Any] = [()]

    def read() -> list[Gpu]:
        if isinstance(answer[0], Exception):
            raise answer[0]
        return list(answer[0])

    monkeypatch.setattr(visible_devices, "read_gpus", read)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda now: answer.__setitem__(0, now)


def look(watch: DeviceWatch) -> Mapping[str, dict[str, Any]]:
    watch.look()
    return watch.seen


def test_memory_of_attempts_is_told_by_study() -> None:
    with ExitStack() as stack:
        first, second = stack.enter_context(holding(60 * MB)), stack.enter_context(holding(120 * MB))
        own = computer({"/a": [first], "/b": [second]})["own"]
    assert 60 * MB < own["/a"] < 100 * MB
    assert 120 * MB < own["/b"] < 160 * MB


def test_memory_of_a_gpu_is_told_by_study(driver: Callable[[Any], None]) -> None:
    with ExitStack() as stack:
        first, second = stack.enter_context(holding(1)), stack.enter_context(holding(1))
        driver((card(10 * GIB, ((first, 3 * GIB), (second, 6 * GIB), (1, GIB))),))
        seen = look(DeviceWatch(lambda: {"/a": [first], "/b": [second]}))
    assert seen["GPU-a"]["own"] == {"/a": 3 * GIB, "/b": 6 * GIB}


def test_what_a_gpu_of_foreign_process_ids_grew_by_is_parted_among_attempts(driver: Callable[[Any], None]) -> None:
    own: dict[str, list[int]] = {}
    watch = DeviceWatch(lambda: own)
    driver((card(GIB),))
    assert look(watch)["GPU-a"]["own"] == {}
    own |= {"/a": [os.getpid()], "/b": [os.getppid()]}
    driver((card(9 * GIB),))
    assert 8 * GIB - 3 <= sum(look(watch)["GPU-a"]["own"].values()) <= 8 * GIB  # rounded down


def test_a_worker_whose_gpu_is_lost_does_not_offer_processors(driver: Callable[[Any], None]) -> None:
    watch = DeviceWatch(dict)
    driver((card(GIB),))
    assert list(look(watch)) == ["GPU-a"]
    driver(())
    assert [list(look(watch)) for _ in range(5)] == [["GPU-a"]] * 2 + [[]] * 3
    driver((card(GIB),))
    assert list(look(watch)) == ["GPU-a"]


@pytest.mark.parametrize(
    ("files", "setting", "names"),
    [
        (["nvidia0", "nvidiactl"], None, []),
        (["nvidiactl", "nvidia-uvm"], None, ["cpu"]),  # the driver is there, and no card
        (["nvidia0"], "", ["cpu"]),  # a person took the cards away from this worker
        (["nvidia0"], "GPU-lost", []),
    ],
)
def test_processors_are_offered_where_there_is_no_gpu(
    files: list[str], setting: str | None, names: list[str],
    driver: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(visible_devices, "_DEVICE_FILES", tmp_path)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    for answer in (NoNvmlError("the driver is not loaded"), ()):
        driver(answer)
        assert [name.partition(":")[0] for name in look(DeviceWatch(dict))] == names


def test_a_worker_with_a_gpu_of_its_own_tells_of_that_alone(
    driver: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number or UUID, whatever this process sees itself."""
    watches: dict[str, DeviceWatch] = {}
    monkeypatch.setattr(visible_devices, "_watches", watches)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    driver((card(GIB), msgspec.structs.replace(card(GIB, uuid="GPU-b"), index=1)))
    try:
        for gpu in ("0", "GPU-b"):
            assert watch_devices(dict, gpu) == ""
        told = {gpu: set(seen_devices(gpu) or ()) for gpu in ("0", "GPU-b", "")}
        assert told == {"0": {"GPU-a"}, "GPU-b": {"GPU-b"}, "": set()}
    finally:
        for watch in watches.values():
            watch.stop()


def test_a_watch_that_nobody_asks_ends_and_begins_again_for_the_next_study(
    driver: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    watches: dict[str, DeviceWatch] = {}
    monkeypatch.setattr(visible_devices, "_watches", watches)
    monkeypatch.setattr(visible_devices, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(visible_devices, "UNASKED_SECONDS", -1.0)
    driver((card(GIB),))
    assert watch_devices(dict) == ""
    first = watches[""]
    assert eventually(lambda: not first.keep_on()) and not seen_devices()
    monkeypatch.setattr(visible_devices, "UNASKED_SECONDS", 600.0)
    try:
        assert watch_devices(dict) == "" and watches[""] is not first
        assert set(seen_devices() or ()) == {"GPU-a"}
    finally:
        watches[""].stop()


def test_a_look_that_fails_is_a_miss_and_said_once(
    driver: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[Exception] = [OSError("unknown error")]

    def own() -> dict[str, list[int]]:
        if broken:
            raise broken[0]
        return {}

    monkeypatch.setattr(visible_devices, "LOOK_SECONDS", 0.001)
    driver((card(GIB),))
    watch = DeviceWatch(own)
    watch.start()  # the first look fails
    try:
        assert (watch.seen, watch.problem) == ({}, "Looking at the devices failed: OSError: unknown error")
        broken.clear()
        assert eventually(lambda: len(watch.seen) == 1)
        broken.append(OSError("unknown error"))
        assert eventually(lambda: not watch.seen)
        broken.clear()
        assert eventually(lambda: len(watch.seen) == 1)
    finally:
        watch.stop()
    assert len(caplog.records) <= 2  # once for each time that it began


SHARES = """
import os, sys
held = bytearray({size}); held[::4096] = b"x" * len(held[::4096])
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        sys.stdin.read()
        os._exit(0)
    children.append(child)
print(flush=True)
sys.stdin.read()
"""


def test_pages_that_attempts_share_count_once() -> None:
    with holding(200 * MB, SHARES) as pid:
        children = visible_devices._with_descendants({"/a": [pid]})["/a"] - {pid}
        assert len(children) == 3
        assert 100 * MB < computer({"/a": children})["own"]["/a"] < 250 * MB


@pytest.mark.parametrize("group", ["/jobs/one", "/../elsewhere"])
def test_limits_of_the_control_groups_above_hold(group: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {
        "jobs/one/memory.max": "max", "jobs/one/cpu.max": "max 100000",
        "jobs/memory.max": str(64 * MB), "jobs/memory.current": str(40 * MB), "jobs/cpu.max": "100000 100000",
        "jobs/memory.stat": f"anon 1\ninactive_file {10 * MB}\nactive_file {5 * MB}",
        "memory.max": str(96 * MB), "memory.current": str(90 * MB),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(f"1:name=systemd:/x\n0::{group}\n")
    monkeypatch.setattr(control_group, "_ROOT", tmp_path)
    monkeypatch.setattr(control_group, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    seen = computer({})
    inside = group == "/jobs/one"
    assert (seen["memory"], seen["memory"] - seen["used"]) == ((64 if inside else 96) * MB, 6 * MB)
    assert seen["cores"] == (1000 if inside else 4000)
