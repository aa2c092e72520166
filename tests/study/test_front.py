from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from hpo_core import Checkpoint
from hpo_core.checkpoints.retention import LiveCheckpoints
from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.views.summary import front_members, front_rows
from tests.conftest import World, failed, fresh, make_spec, played

METRICS = [{"name": "error"}, {"name": "speed", "mode": "max"}, {"name": "size"}]


class Tradeoff(World):
    """Errors fall with x, speed and size with other parameters; the second metric is not finite now and then."""

    def report(self, job: Job) -> Report:
        self.now += self.random.random()
        if self.random.random() < self.failures:
            return failed(job, Outcome.ERROR)
        x, size = float(job.params["x"]), float(job.params.get("d", 8))
        speed = math.nan if self.random.random() < self.nans else x + 1 / size
        metrics = {"error": x**2 + 1 / job.target, "speed": speed, "size": size}
        outcome = Outcome.DIVERGED if math.isnan(speed) else Outcome.COMPLETED
        return Report(trial=job.trial, attempt=job.attempt, outcome=outcome, metrics=metrics)


SEARCH = {"method": "asha", "configs": 40, "min_resource": 1, "max_resource": 27, "reduction_factor": 3}


def test_values_are_the_users_metrics() -> None:
    world = Tradeoff(3, workers=4, failures=0.05, nans=0.05)
    study = played(make_spec(metric=METRICS[0], metrics=METRICS[:2], search=SEARCH), world)
    members = front_members(study.spec, study.state)
    facts = list(msgspec.to_builtins(members))
    assert len(facts) == len(study.front) > 2
    for found in facts:
        result = next(r for r in study.state.trials[found["trial"]].results if r.resource == found["resource"])
        assert found["values"] == {name: result.metrics[name] for name in ("error", "speed")}
        assert found["params"] == study.state.trials[found["trial"]].params
    assert [found["values"]["error"] for found in facts] == sorted(found["values"]["error"] for found in facts)
    assert json.loads(json.dumps(facts)) == facts
    columns = {tuple(row) for row in front_rows(members)}
    assert columns == {("trial", "trained to", "error", "speed", "x", "c", "d")}, "one shape, conditional or not"
    assert [next(iter(row.values())) for row in front_rows(members, 2)] == [found["trial"] for found in facts[:2]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"metrics": METRICS[:2], "sampler": {"name": "CmaEsSampler"}}, "CmaEsSampler cannot do 2 objectives"),
        ({"metrics": METRICS[1:]}, "metric 'error' is not the first of metrics 'speed'"),
        ({"metrics": [METRICS[0], METRICS[0]]}, "names one metric twice"),
        (
            {"metrics": METRICS[:2], "search": {"method": "pasha", "configs": 9, "max_resource": 9}},
            "pasha ranks by one",
        ),
    ],
)
def test_what_several_objectives_cannot_have(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        make_spec(metric=METRICS[0], **changes)


def test_every_result_of_the_front_keeps_its_checkpoint() -> None:
    study = fresh(make_spec(metric=METRICS[0], metrics=METRICS[:2], search=SEARCH | {"configs": 27}))
    while (job := study.ask()) is not None:  # errors grow with training, so the first results stay on the front
        metrics = {"error": 0.1 + job.target / 100 + job.trial, "speed": job.target / (1 + job.trial)}
        study.tell(job, metrics, checkpoint=Checkpoint(f"t{job.trial}/{job.target}", "0" * 64, job.target, 1))
        live = LiveCheckpoints(study.state, study.method)
        assert all(checkpoint.uri in live for _, checkpoint in study.state.front_checkpoints())
    study.check()
    assert [(member.trial, member.resource) for member in study.front] == [(0, 1), (0, 3), (0, 9), (0, 27)]
    assert len(study.state.front_checkpoints()) == 4
