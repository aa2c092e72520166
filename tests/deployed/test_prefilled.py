"""Forms that begin with an objective's space or with a study file, and the cluster of a study file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.spec import StudySpec, load_spec
from hpo_flows.deployed.form import ClusterOfFile, with_changes
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
    form = form_of(spec, "study.yaml")
    seed = form.pop("seed")
    described = filled_in(Permissions(MODELS), **form)
    made = with_changes(described, "rows", Permissions(MODELS), seed=seed, cluster=None)
    assert made.plain() == spec.plain()


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
    form = form_of(spec, "study.yaml")
    seed = form.pop("seed")
    made = with_changes(filled_in(Permissions(MODELS), **form), "rows", Permissions(MODELS), seed=seed, cluster=None)
    assert made.plain() == spec.plain() and made.packing is not None


def test_a_study_that_shares_slots_is_on_the_form() -> None:
    share = {"pool": "cpu", "weight": 2.5, "priority": 1, "preempt": 30, "slots": 4}
    spec = StudySpec.from_plain(STUDY | {"share": share, "sampler": {"name": "TPESampler"}})
    form = form_of(spec, "study.yaml")
    seed = form.pop("seed")
    described = filled_in(Permissions(MODELS), **form)
    made = with_changes(described, "rows", Permissions(MODELS), seed=seed, cluster=None)
    assert made.plain() == spec.plain() and made.share is not None


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
    form = form_of(spec, "study.yaml")
    seed = form.pop("seed")
    allowed = Permissions(MODELS, data_folder=Path("/srv"))
    made = with_changes(filled_in(allowed, **form), "rows", allowed, seed=seed, cluster=None)
    assert made.plain() == spec.plain() and made.data is not None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lr": {"type": "normal", "mean": 0, "std": 1}}, r"space\.lr|numbers"),
        ({"lr": {"type": "float", "low": 0, "high": 1, "when": {"net.size": {"not": 1}}}}, r"space\.lr"),
        ({"net.size": {"type": "categorical", "choices": [1, 2, 4], "weights": [1, 2, 3]}}, r"space\.net\.size"),
    ],
    ids=["normal", "condition", "weights"],
)
def test_what_rows_cannot_say_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    spec = StudySpec.from_plain(STUDY | {"space": STUDY["space"] | changes, "start_with": []})
    with pytest.raises(SpecError, match=says) as found:
        form_of(spec, "study.yaml")
    assert "tune-file" in str(found.value)


def test_an_objective_fills_in_the_space_that_it_suggests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    source = "tests.flows.optuna_objectives:conditional"
    with pytest.raises(NotAllowedError, match="HPO_ALLOWED_OBJECTIVES"):
        prefilled_deployments([source], Permissions(MODELS))
    (made,) = prefilled_deployments([source], Permissions(("tests.flows",)))
    assert made["name"] == "tests.flows.optuna_objectives.conditional"
    form = made["parameters"]
    assert form["further"]["style"] == "optuna" and form["method"]["asha"] == "asha"
    rows = {row["name"]: row for row in form["numbers"] + form["choices"]}
    assert rows["x"]["low"] == -1 and rows["optimizer"]["values"] == ["sgd", "adam"]
    assert rows["momentum"]["only_if"] == "optimizer = sgd"
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
    made = with_changes(plain, "rows", allowed, seed=None, cluster=ClusterOfFile(file="slurm.yaml"))
    assert made.cluster == load_spec(file).cluster and made.seed == 5
    with pytest.raises(NotAllowedError, match="slurm"):
        with_changes(
            plain,
            "rows",
            Permissions(MODELS, tmp_path, (tmp_path,)),
            seed=None,
            cluster=ClusterOfFile(file=file.name),
        )
    with pytest.raises(NotAllowedError, match="does not lie in"):
        with_changes(plain, "rows", allowed, seed=None, cluster=ClusterOfFile(file="../slurm.yaml"))
