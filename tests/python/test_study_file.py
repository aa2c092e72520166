"""``result.spec.to_yaml()`` writes the study file: the same spec, whatever classes it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hpo_core as hpo
from hpo_core.spec.study_file import with_places

TEXTS = st.one_of(
    st.sampled_from(["1e-4", "on", "off", "yes", "null", "~", "0x1f", "2024-01-01", "1_000", "a: b", "- x", "#", ""]),
    st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=8),
)
SCALARS = st.one_of(st.integers(-9, 99), st.floats(-1e9, 1e9, allow_subnormal=False), TEXTS, st.booleans(), st.none())
SPACE = {
    "lr": hpo.Float(1e-4, 1, log=True),
    "width": hpo.Int(2, 64, step=2),
    "act": hpo.Choice("relu", None, 3, [1, 2]),
    "size": hpo.Choice(["1e-4", "off", "large"], type="ordinal"),
}
PARTS: dict[str, list[Any]] = {
    "search": [
        hpo.Asha(configs=9, max_resource=27),
        hpo.Asha(configs=9, max_resource=9, min_resource=1, reduction_factor=2.5, variant="stopping"),
        hpo.Sha(configs=16, max_resource=9),
        hpo.Hyperband(max_resource=9),
        hpo.Pasha(configs=9, max_resource=27),
        hpo.Pbt(population=4, generations=3, perturb=[0.5, 2]),
        hpo.Random(configs=9),
        hpo.Grid(points={"lr": 3, "decay": 2}),
    ],
    "sampler": [hpo.Sampler(), hpo.Sampler("ranked_gp"), hpo.Sampler("TPESampler", n_startup_trials=3)],
    "cluster": [
        hpo.Slurm(cores=2, directives=["--x=#y"]),
        hpo.LocalCuda(),
        {"kind": "local", "workers": 3},
        {"kind": "address", "address": "tls://10.0.0.1:8786"},
    ],
    "packing": [
        hpo.Packing(),
        hpo.Packing(demand=hpo.Demand(memory="2GB", function="package.module:need"), oversubscribe={"default": 2}),
    ],
    "share": [hpo.Share(pool="all"), hpo.Share(pool="all", weight=2)],
    "data": [hpo.Data(partitions=["a.npz", "b.npz"], validation=["c.npz"], folder="/data")],
    "training": [hpo.Training(threads="auto", retries={hpo.Outcome.ERROR: 1}), hpo.Training(gang=2)],
    "stop": [hpo.Stop(seconds=60, target=0.1)],
    "checkpoints": [hpo.Checkpoints(max_count=3, folder="s3://bucket/hpo")],
    "tracking": [hpo.Tracking(mlflow="off", experiment="ours")],
    "warm_start": [hpo.WarmStart(studies=["before"])],
    "metrics": [[hpo.Metric("loss"), hpo.Metric("accuracy", "max")]],
    "constraints": [["memory"]],
    "forbidden": [[{"act": "relu", "lr": {"low": 0.5}}]],
    "start_with": [[{"lr": 0.25, "size": "off"}]],
    "seed": [7],
    "best_of": ["highest_rung"],
    "prefect": ["off", "rungs"],
    "style": ["optuna"],
    "build": ["package.module:build"],
}


@st.composite
def specs(draw: st.DrawFn) -> hpo.StudySpec:
    """Studies of any parts that go together."""
    space = {name: parameter for name, parameter in SPACE.items() if draw(st.booleans())}
    space["free"] = hpo.Choice(choices=draw(st.lists(SCALARS, min_size=1, max_size=4, unique_by=repr)))
    if "act" in space and draw(st.booleans()):
        space["decay"] = hpo.Float(0, 1, when={"act": "relu"})
    data: dict[str, Any] = {
        "study": "study",
        "objective": "module:train",
        "metric": hpo.Metric(draw(TEXTS.filter(bool)), draw(st.sampled_from(["min", "max"]))),
        "space": space,
        "search": hpo.Random(configs=3),
        "constants": draw(st.dictionaries(TEXTS, SCALARS, max_size=3)),
        "pythonpath": ["/code"],
    }
    for name in draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=6, unique=True)):
        data[name] = draw(st.sampled_from(PARTS[name]))
        if name == "training" and draw(st.booleans()):
            data |= {"training": hpo.Training(gang="auto"), "scaling": hpo.Scaling(speedups={2: 1.9, 4: 3.4})}
        if name == "metrics":
            data["metric"] = data[name][0]
    return with_places(hpo.StudySpec(**data), Path("/"))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_study_file_of_a_spec_is_that_spec(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    try:
        spec = data.draw(specs())
    except hpo.SpecError:  # parts that exclude each other
        return
    file = tmp_path_factory.getbasetemp() / "study.yaml"
    file.write_text(spec.to_yaml())
    assert hpo.load_spec(file) == spec


@pytest.mark.parametrize(
    ("part", "value"), [(part, value) for part, values in PARTS.items() for value in values], ids=repr
)
def test_each_part_is_written_and_read(part: str, value: Any, tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "study": "study",
        "objective": "module:train",
        "metric": hpo.Metric("loss"),
        "space": {**SPACE, "decay": hpo.Float(0, 1, when={"act": "relu"})},
        "search": hpo.Random(configs=9),
        "pythonpath": ["/code"],
    } | {part: value}
    spec = with_places(hpo.StudySpec(**data), Path("/"))
    (tmp_path / "study.yaml").write_text(spec.to_yaml())
    assert hpo.load_spec(tmp_path / "study.yaml") == spec
    assert len(spec.to_yaml().splitlines()) < 60  # defaults are left out
