"""Flows of a user's own that call ``hpo.tune``; run as a program, it writes what they saw to ``facts.json``."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from distributed import Client, LocalCluster
from prefect import flow, task
from prefect.cache_policies import INPUTS
from prefect.client.orchestration import get_client
from prefect.exceptions import Abort
from prefect.runtime import flow_run
from prefect.states import Cancelling

import hpo_core as hpo

facts: dict[str, Any] = {}
GATE = Path("gate").resolve()


def train(trial: Any) -> None:
    for step in trial.steps():
        time.sleep(0.02)
        trial.report(loss=(trial.params["x"] - 0.3) ** 2 / (step + 1))


def held(trial: Any) -> None:
    """Its trials after the first four wait for a file."""
    for _step in trial.steps():
        while trial.number >= 4 and not GATE.exists():
            time.sleep(0.05)
        trial.report(loss=trial.params["x"])


def never(trial: Any) -> None:
    for _step in trial.steps():
        trial.report(loss=float("nan"))


def search(client: Client, name: str, function: Any = train, **changes: Any) -> hpo.Result:
    given: dict[str, Any] = {"method": hpo.Asha(configs=6, max_resource=3, reduction_factor=3)} | changes
    return hpo.tune(
        function, {"x": hpo.Float(0, 1)}, metric="loss", cluster=client, name=name, tracking={"mlflow": "off"}, **given
    )


@task(persist_result=True, result_serializer="json", cache_policy=INPUTS - "client")
def tuned(client: Client, name: str) -> hpo.Result:
    return search(client, name)


@task
def promote(best: hpo.TrialResult) -> float:
    return best.value


@flow
def in_a_flow(client: Client) -> None:
    facts["in_a_flow"] = flow_run.id
    result = search(client, "plain")
    facts["promoted"], facts["best"] = promote(result.best), result.best.value
    facts["task"] = tuned.submit(client, "in-task").result().status
    facts["cached"] = tuned(client, "in-task").best.params


@flow
async def in_an_async_flow(client: Client) -> None:
    facts["in_an_async_flow"] = flow_run.id
    in_thread = asyncio.create_task(asyncio.to_thread(search, client, "in-thread", share=True))
    await asyncio.sleep(0)
    facts["async"] = [search(client, "blocking", share=True).status, (await in_thread).status]


@flow
def without_a_result(client: Client) -> None:
    facts["without_a_result"] = flow_run.id
    search(client, "nothing", never)


@flow
def cancelled(client: Client) -> None:
    facts["cancelled"] = run = flow_run.id

    def cancel(_: hpo.Report) -> None:
        with get_client(sync_client=True) as api:
            api.set_flow_run_state(run, Cancelling(), force=True)

    search(client, "halted", held, callbacks=[cancel], method=hpo.Random(configs=12, max_resource=1))


@flow(retries=1)
def tried_again(client: Client) -> None:
    facts["tried_again"] = flow_run.id
    GATE.touch()
    found = search(client, "halted", held, resume=True, method=hpo.Random(configs=12, max_resource=1))
    facts.setdefault("jobs", []).append(found.study.state.completed_jobs)
    if len(facts["jobs"]) == 1:
        raise RuntimeError("after the search")


def main() -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        if sys.argv[1:] == ["async"]:
            asyncio.run(in_an_async_flow(client))
            facts["workers"] = len(client.scheduler_info()["workers"])
            Path("facts.json").write_text(json.dumps(facts))
            return
        if sys.argv[1:] != ["ends"]:
            in_a_flow(client)
            Path("facts.json").write_text(json.dumps(facts))
            return
        for failing in (without_a_result, cancelled):
            try:
                failing(client)
            except (hpo.HpoError, Abort) as error:
                facts[f"{failing.name} raised"] = f"{type(error).__name__}: {error}"
        halted = hpo.load("halted")
        facts["halted"] = [halted.status, halted.study.state.completed_jobs]
        tried_again(client)
    Path("facts.json").write_text(json.dumps(facts))


def outside() -> None:
    """Calls in no flow: one that nothing shows, and one that is cancelled in Prefect."""
    before = dict(os.environ)
    space, given = {"x": hpo.Float(0, 1)}, {"metric": "loss", "workers": 1, "tracking": {"mlflow": "off"}}
    hpo.tune(train, space, max_trials=1, home=None, name="unseen", metric="loss", workers=1)
    try:
        hpo.tune(held, space, max_trials=5000, name="shown", **given)
    except KeyboardInterrupt:
        left = [process.name() for process in psutil.Process().children(recursive=True)]
        known = ("PREFECT", "NO_PROXY", "no_proxy", "HOME")
        changed = [name for name, value in os.environ.items() if before.get(name) != value and name.startswith(known)]
        said = {"status": hpo.load("shown").status, "left": left, "set": changed}
        Path("outside.json").write_text(json.dumps(said))


if __name__ == "__main__":
    outside() if sys.argv[1:] == ["outside"] else main()
