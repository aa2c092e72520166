"""Forms that begin with an objective's space or with a study file, and the cluster of a study file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.spec import StudySpec, load_spec
from hpo_flows.deployed.form import with_changes
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.deployed.prefilled import form_of, prefilled_deployments
from tests.deployed.filled_forms import filled_in
from tests.flows.conftest import ROOT

MODELS = ("models.net:fit", "models.net:load")
STUDY: dict[str, Any] = {
    "study": "rows",
    "objective": "models.net:fit",
    "style": "optuna",
    "metric": {"name": "loss", "mode": "max"},
    "space": {
        "lr": {"type": "float", "low": 0.001, "high": 1, "log": True},
        "width": {"type": "int", "low": 8, "high": 32, "step": 8, "static": True},
        "net.kind": {"type": "categorical", "choices": ["sgd", "16", 16, True, None, 0.5, "a: b", "no"]},
        "net.size": {"type": "ordinal", "choices": [1, 2, 4]},
        "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"net.kind": ["sgd", 16]}},
    },
    "constraints": ["memory"],
    "start_with": [{"lr": 0.1}],
    "constants": {"data": "a.npz", "shape": [1, 2]},
    "search": {"method": "asha", "configs": 9, "max_resource": 9, "min_resource": 1, "reduction_factor": 3},
    "sampler": {"name": "TPESampler"},
    "seed": 5,
    "training": {"threads": "auto", "max_lost": None},
    "stop": {"seconds": 50},
}
SEARCHES: list[dict[str, Any]] = [
    {"method": "sha", "configs": 16, "max_resource": 9},
    {"method": "hyperband", "max_resource": 9, "rounds": 2},
    {"method": "pasha", "configs": 9, "max_resource": 9},
    {"method": "random", "configs": 9, "max_resource": 9},
    {"method": "grid", "max_resource": 9, "points": {"lr": 3, "momentum": 2}},
    {"method": "asha", "variant": "stopping", "configs": 9, "max_resource": 9, "brackets": [0, 1]},
]


@pytest.mark.parametrize("search", [STUDY["search"], *SEARCHES], ids=lambda search: search["method"])
def test_a_form_that_begins_with_a_study_makes_that_study(search: dict[str, Any]) -> None:
    sampler = "random" if search["method"] == "grid" else "TPESampler"
    spec = StudySpec.from_plain(STUDY | {"search": search, "sampler": {"name": sampler}})
    made = filled_in(Permissions(MODELS), **form_of(spec, "study.yaml"))
    assert made.plain() == spec.plain() | {"study": "study", "pythonpath": []}


@pytest.mark.parametrize(
    "packing",
    [
        True,
        {"policy": "worst_fit", "by": ["width"], "memory": {"CPU": "2GB"}, "most": 3, "look_ahead": 5},
        {"demand": {"memory": "2GB", "compute": 30, "cores": 0.5, "function": "models.net:load"}},
    ],
    ids=["as usual", "settings", "demand"],
)
def test_a_study_that_packs_is_on_the_form(packing: Any) -> None:
    spec = StudySpec.from_plain(STUDY | {"packing": packing, "sampler": {"name": "TPESampler"}})
    made = filled_in(Permissions(MODELS), **form_of(spec, "study.yaml"))
    assert made.plain() == spec.plain() | {"study": "study", "pythonpath": []} and made.packing is not None


def test_a_study_that_shares_slots_is_on_the_form() -> None:
    share = {"pool": "cpu", "weight": 2.5, "priority": 1, "preempt": 30, "slots": 4}
    spec = StudySpec.from_plain(STUDY | {"share": share, "sampler": {"name": "TPESampler"}})
    made = filled_in(Permissions(MODELS), **form_of(spec, "study.yaml"))
    assert made.plain() == spec.plain() | {"study": "study", "pythonpath": []} and made.share is not None


@pytest.mark.parametrize(
    "data",
    [
        {"partitions": "*.npz", "validation": "v/manifest.json", "folder": "/srv/shards", "load": "models.net:load"},
        {"partitions": ["b", {"name": "a", "count": 3}], "folder": "/srv/shards", "concurrent": 2},
    ],
    ids=["patterns", "list"],
)
def test_a_study_whose_models_hop_is_on_the_form(data: Any) -> None:
    spec = StudySpec.from_plain(STUDY | {"style": "handle", "sampler": {"name": "TPESampler"}, "data": data})
    made = filled_in(Permissions(MODELS, data_folder=Path("/srv")), **form_of(spec, "study.yaml"))
    assert made.plain() == spec.plain() | {"study": "study", "pythonpath": []} and made.data is not None


def test_every_parameter_and_condition_of_a_study_file_is_on_the_form() -> None:
    """Rows of numbers and choices once refused these."""
    changes = {
        "lr": {"type": "lognormal", "mean": -7, "std": 1, "high": 1},
        "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"net.size": {"not": 1}}},
        "net.size": {"type": "ordinal", "choices": [1, 2, 4], "weights": [1, 2, 3], "default": 2},
    }
    spec = StudySpec.from_plain(STUDY | {"space": STUDY["space"] | changes, "search": SEARCHES[-1]})
    made = filled_in(Permissions(MODELS), **form_of(spec, "study.yaml"))
    assert made.plain() == spec.plain() | {"study": "study", "pythonpath": []}


def test_what_the_form_cannot_say_is_refused_by_name() -> None:
    """An end of a range that is another parameter: its input takes numbers."""
    space = STUDY["space"] | {"momentum": {"type": "float", "low": 0, "high": {"param": "lr"}}}
    with pytest.raises(SpecError, match=r"space\.momentum\.high = {param: lr}") as found:
        form_of(StudySpec.from_plain(STUDY | {"space": space}), "study.yaml")
    assert "tune-file" in str(found.value)


def test_an_objective_fills_in_the_space_that_it_suggests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    source = "tests.flows.optuna_objectives:conditional"
    with pytest.raises(NotAllowedError, match="HPO_ALLOWED_OBJECTIVES"):
        prefilled_deployments([source], Permissions(MODELS))
    (made,) = prefilled_deployments([source], Permissions(("tests.flows",)))
    assert made["name"] == "tests.flows.optuna_objectives.conditional"
    form = made["parameters"]
    assert form["advanced"]["style"] == "optuna" and "asha" in form["search"]
    rows = {row["name"]: row for row in form["space"]["float"] + form["space"]["categorical"]}
    assert rows["x"]["low"] == -1 and rows["optimizer"]["choices"] == ["sgd", "adam"]
    assert rows["momentum"]["advanced"]["when"] == "{optimizer: sgd}"
    with pytest.raises(SpecError, match="two sources are called"):
        prefilled_deployments([source, source], Permissions(("tests.flows",)))


def test_the_cluster_of_a_study_file_is_used_and_nothing_else_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a study that is not read from a file is imported from
    file = tmp_path / "slurm.yaml"
    file.write_text(
        "{study: s, objective: 'models.net:fit', metric: {name: loss}, space: {x: {type: float, low: 0, high: 1}}, "
        "search: {method: random, configs: 3}, seed: 9, cluster: {kind: slurm, workers: 3}}"
    )
    plain = StudySpec.from_plain(STUDY | {"pythonpath": []})
    allowed = Permissions(MODELS, tmp_path, (tmp_path,), ("slurm",))
    made = with_changes(plain, "rows", allowed, cluster={"kind": "file", "file": "slurm.yaml"})
    assert made.cluster == load_spec(file).cluster and made.seed == 5
    with pytest.raises(NotAllowedError, match="slurm"):
        with_changes(
            plain, "rows", Permissions(MODELS, tmp_path, (tmp_path,)), cluster={"kind": "file", "file": file.name}
        )
    with pytest.raises(NotAllowedError, match="does not lie in"):
        with_changes(plain, "rows", allowed, cluster={"kind": "file", "file": "../slurm.yaml"})
