"""What workers send with their heartbeats, as the watch over the cluster takes it."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable
from typing import Any

from hpo_core.model.devices.measurement import Usage
from hpo_flows.dask.lost_workers import ClusterWatch
from hpo_flows.dask.on_worker import cancel_attempts_of, tell_with_heartbeats
from hpo_flows.dask.worker_facts import DEVICES, METRIC, USAGES, WorkerQuestions, usages_in

GPU = {"node": "n", "architecture": "A100", "memory": 80, "used": 3, "own": {"/a": 2}, "cores": 8000, "gpu": True}
CPU = GPU | {"architecture": "CPU", "gpu": False}
USAGE = {"memory": 5}


class Cluster:
    """A scheduler of one worker, whose metrics a test writes; the client's loop is the test's."""

    def __init__(self, metrics: dict[str, Any], greet: Callable[[str], Awaitable[None]]) -> None:
        self.metrics = metrics
        self._greet = greet

    async def run(self, function: Callable[..., Any], *_arguments: Any, workers: list[str]) -> dict[str, Any]:
        assert function in (tell_with_heartbeats, cancel_attempts_of)
        if function is tell_with_heartbeats:
            await self._greet(workers[0])
        return {}

    async def run_on_scheduler(self, function: Callable[..., Any], *arguments: Any) -> Any:
        worker = types.SimpleNamespace(
            address="tcp://1", nthreads=2, last_seen=0.0, processing={}, executing=set(), metrics=self.metrics
        )
        return function(*arguments, dask_scheduler=types.SimpleNamespace(workers={"tcp://1": worker}))


async def greeted(_address: str) -> None:
    """What a worker is asked does not matter here."""


def watch(metrics: dict[str, Any], *, asks: bool, greet: Callable[[str], Awaitable[None]] = greeted) -> Any:
    return ClusterWatch(
        Cluster(metrics, greet), prefix="s/", asked=WorkerQuestions("/a", devices=asks), timeout=60.0, limit=None,
        on_end=lambda *_: None, replace=greeted,
    )  # fmt: skip


def looked(metrics: dict[str, Any]) -> Any:
    """A watch after its first look."""
    found = watch(metrics, asks=True)

    async def once() -> None:
        looking = asyncio.ensure_future(found._watch())
        while not found.well() and not looking.done():
            await asyncio.sleep(0)
        while not looking.done():  # Python 3.11 may lose a cancellation
            looking.cancel()
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(once(), 600))
    assert found.slots() == 2
    return found


def devices(found: Any) -> dict[str, Any]:
    return {address: facts.devices or {} for address, facts in found.well().items()}


def test_what_does_not_fit_is_left_out() -> None:
    sent = {
        DEVICES: {
            "GPU-a": GPU,
            "GPU-b": GPU | {"memory": "much"},
            "GPU-c": GPU | {"used": -1},
            "GPU-d": GPU | {"own": 7},
            "GPU-e": {"node": "n"},
            "GPU-f": None,
            7: GPU,
        },
        USAGES: {
            "/a/trial-3/attempt-0": USAGE,
            "/a/trial-x/attempt-0": USAGE,
            "/a/b/trial-4/attempt-0": USAGE,
            "trial-5": USAGE,
            "/a/trial-6/attempt-0": {"memory": "much"},
            "/a/trial-7/attempt-0": None,
        },
        METRIC: {"/a/trial-3/attempt-0": 4, 5: 6, "/a/trial-3/attempt-1": "often"},
    }
    found = looked(sent)
    assert list(devices(found)["tcp://1"]) == ["GPU-a"]
    assert usages_in(found.well(), "/a") == {(3, 0): Usage(memory=5)}
    for rubbish in (5, "word", [1], None):
        found = looked({DEVICES: rubbish, USAGES: rubbish, METRIC: rubbish})
        assert (devices(found), usages_in(found.well(), "/a")) == ({"tcp://1": {}}, {})
        assert devices(looked({DEVICES: {"GPU-a": rubbish}})) == {"tcp://1": {}}
