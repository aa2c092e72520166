"""Processor time of handing a job to a Dask worker and back, in client, scheduler and workers, without any training.

- ``task``: a Dask task per job;
- ``call``: a call through the scheduler to a task that stays open, answered when the job is done (decision 14);
- ``direct``: the same call straight from the client to the worker;
- ``event``: a call acknowledged at once, the report published as an event.

    python benchmarks/jobs/handing_over.py --jobs 2000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import time
from collections.abc import Callable
from typing import Any

from distributed import Client, LocalCluster, get_worker
from distributed.protocol.pickle import dumps
from slots import SLOTS

REQUEST, REPORT = b"x" * 600, b"x" * 300
TOPIC = "reports"
requests: dict[str, queue.SimpleQueue[Callable[[], None] | None]] = {}
"""On a worker: what its open task does next."""


def as_task(_: bytes) -> bytes:
    return REPORT


def stay_open(address: str) -> None:
    mine = requests[address] = queue.SimpleQueue()
    get_worker().log_event(TOPIC, address)
    while (work := mine.get()) is not None:
        work()


async def answered(address: str, _: bytes) -> bytes:
    import handing_over

    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    handing_over.requests[address].put(lambda: loop.call_soon_threadsafe(answer.set_result, REPORT))
    found: bytes = await answer
    return found


async def acknowledged(address: str, _: bytes, dask_worker: Any) -> None:
    import handing_over

    handing_over.requests[address].put(lambda: dask_worker.log_event(TOPIC, address))


async def let_end(address: str) -> None:
    import handing_over

    handing_over.requests[address].put(None)


def spent(client: Client) -> float:
    return time.process_time() + sum(client.run(time.process_time).values())


def measure(way: str, client: Client, jobs: int) -> float:
    """Milliseconds per job."""
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    addresses = list(client.scheduler_info()["workers"])
    tasks = []
    if way == "task":
        for address in addresses:
            ended.put(address)
    else:
        import handing_over

        client.subscribe_topic(TOPIC, lambda event: ended.put(event[1]))
        tasks = [client.submit(handing_over.stay_open, at, workers=[at], pure=False) for at in addresses]
        free = [ended.get(timeout=60) for _ in tasks]
        for address in free:
            ended.put(address)
    function = dumps(answered)

    async def hand_over(address: str) -> None:
        if way == "task":
            await client.submit(as_task, REQUEST, pure=False)
        elif way == "call":
            await client.run(answered, address, REQUEST, workers=[address])
        elif way == "direct":
            await client.rpc(address).run(function=function, args=dumps((address, REQUEST)), kwargs=dumps({}))
        else:
            await client.run(acknowledged, address, REQUEST, workers=[address])
            return
        ended.put(address)

    before = spent(client)
    loop = client.loop.asyncio_loop
    under_way = [asyncio.run_coroutine_threadsafe(hand_over(ended.get(timeout=60)), loop) for _ in range(jobs)]
    for call in under_way:
        call.result(60)
    for _ in addresses:
        ended.get(timeout=60)
    used = spent(client) - before
    for address in addresses if tasks else []:
        client.run(let_end, address, workers=[address])
    for task in tasks:
        task.result(timeout=60)
    return round(used / jobs * 1e3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    given = parser.parse_args()
    found = {}
    for way in ("task", "call", "direct", "event"):
        with (
            LocalCluster(n_workers=SLOTS, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
            Client(cluster) as client,
        ):
            found[way] = measure(way, client, given.jobs)
    print(json.dumps({"jobs": given.jobs, "cpu_ms": found}))


if __name__ == "__main__":
    import handing_over

    handing_over.main()
