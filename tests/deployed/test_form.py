"""How a form becomes a study."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate
from pydantic import TypeAdapter, ValidationError

from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Outcome
from hpo_core.spec import StudySpec
from hpo_core.spec.data import DataSpec
from hpo_core.spec.packing import DemandSpec, PackingSpec
from hpo_core.spec.sections import AddressClusterSpec, LocalClusterSpec, TrainingSpec
from hpo_flows.deployed.flows import resume, tune
from hpo_flows.deployed.form import (
    _ASKED_ELSEWHERE,
    SECTIONS,
    DaskScheduler,
    FilledIn,
    LocalWorkers,
    as_drawn,
    drawn_section,
    read_form,
    study_of,
    with_changes,
)
from hpo_flows.deployed.form_schema import DEFAULT_METHOD, FOLD, Method, empty_tab
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.deployed.prefilled import begun_as_drawn
from tests.conftest import make_spec
from tests.deployed.filled_forms import filled_in, made


def test_what_needs_a_cluster_is_judged_by_the_one_that_was_chosen() -> None:
    permissions = Permissions(("models.net:fit",), clusters=("tls://a:1",))
    fields: dict[str, Any] = {
        "objective": "models.net:fit",
        "numbers": [{"name": "rate", "low": 1e-4, "high": 1, "log": True}],
        "method": DEFAULT_METHOD,
    }
    four = filled_in(permissions, cluster=LocalWorkers(workers=4), training={"gang": "4"}, **fields)
    assert (four.training.gang, four.cluster) == (4, LocalClusterSpec(workers=4))
    with pytest.raises(SpecError, match="training.gang = 4 needs 4 slots at once, and cluster.workers gives 3"):
        filled_in(permissions, cluster=LocalWorkers(workers=3), training={"gang": "4"}, **fields)
    at = DaskScheduler(address="tls://a:1")
    shared = filled_in(permissions, cluster=at, further={"share": "{weight: 2}"}, **fields)
    made = with_changes(shared, "one", permissions, seed=None, cluster=at)
    assert made.share is not None and (made.share.pool, made.share.weight) == (None, 2.0)
    with pytest.raises(SpecError, match="share.pool is absent"):
        filled_in(permissions, further={"share": "{weight: 2}"}, **fields)


def test_limits_of_attempts_have_fields(permissions: Permissions) -> None:
    assert made(permissions).training == TrainingSpec()
    given = {"max_lost": 5, "stall_timeout": None, "worker_timeout": 90.0, "fail_fast": 2}
    training = made(permissions, training=given).training
    assert {name: getattr(training, name) for name in given} == given
    assert made(permissions, training={"max_lost": 0}).training.max_lost is None, "0 says none"
    assert made(permissions, training={"retries": "{error: 2}"}).training.allowed(Outcome.ERROR) == 2
    with pytest.raises(SpecError, match="max_lost"):
        made(permissions, training={"max_lost": -1})
    schema = drawn_section(SECTIONS["training"]).model_json_schema()["properties"]
    assert schema["max_lost"]["default"] == 3 and "abandoned" in schema["max_lost"]["description"]
    assert set(TrainingSpec.model_fields) == set(schema), "what is new in the study file is on the form"
    drawn = parameter_schema(tune).model_dump()["definitions"]["Attempts"]["properties"]
    assert drawn.keys() == schema.keys()


def test_everything_of_a_study_file_is_on_the_form(permissions: Permissions) -> None:
    on_form = set(parameter_schema(tune).model_dump()["definitions"]["Furthersettings"]["properties"])
    assert on_form | set(_ASKED_ELSEWHERE) == set(StudySpec.model_fields)
    assert "pythonpath" not in on_form, "where code comes from is the worker's"
    further = {"style": "handle", "metrics": "[{name: val_loss}, {name: size, mode: min}]", "warm_start": " "}
    spec = made(permissions, further=further)
    assert [metric.name for metric in spec.objectives] == ["val_loss", "size"] and spec.warm_start is None
    for text in ("{name: [", "loss"):
        with pytest.raises(SpecError, match="metrics"):
            made(permissions, further={"metrics": text})
    with pytest.raises(NotAllowedError, match="checkpoints.folder"):
        made(permissions, further={"checkpoints": "{folder: 's3://elsewhere'}"})


def test_packing_has_fields_of_its_own(permissions: Permissions) -> None:
    assert made(permissions).packing is None
    assert made(permissions, packing={}).packing == PackingSpec(), "an opened section that was left as it stood"
    filled = {"policy": "worst_fit", "job_memory": "2GB", "job_compute": "30", "by": "",
              "memory": "8GB", "oversubscribe": "{A100: 3}", "most": 4}  # fmt: skip
    packing = made(permissions, packing=filled).packing
    assert packing is not None and packing.policy == "worst_fit" and packing.most == 4
    assert packing.demand.stated() == {"memory": "2GB", "compute": 30}
    assert packing.memory == {"default": "8GB"} and packing.ratio("A100") == 3
    with pytest.raises(SpecError, match="packing.demand.memory"):
        made(permissions, packing={"job_memory": "2GB * width"})
    schema = parameter_schema(tune).model_dump()
    first, _ = schema["definitions"]["Advanced"]["properties"]["packing"]["anyOf"]
    assert first == empty_tab("One job on each slot")
    drawn = schema["definitions"]["Packing"]["properties"]
    assert set(PackingSpec.model_fields) - {"demand"} <= set(drawn), "what is new in the study file is on the form"
    assert {name.removeprefix("job_") for name in drawn if name.startswith("job_")} == set(DemandSpec.model_fields)
    titles = [drawn[name]["title"] for name in ("by", "most", "mps")]
    assert titles == ["Need decided by", "Most jobs on a device", "Share GPUs by MPS"]
    assert drawn["policy"]["enum"][0] == "fill" and "required" not in schema["definitions"]["Packing"]


def test_data_have_fields_of_their_own(permissions: Permissions, tmp_path: Path) -> None:
    allowed = dataclasses.replace(permissions, data_folder=tmp_path / "data")
    assert made(allowed).data is None
    data = made(allowed, data={"partitions": "*.npz", "scheduler": "randomized", "folder": "shards"}).data
    assert data is not None and data.partitions == "*.npz" and data.scheduler == "randomized"
    assert data.folder == str(tmp_path / "data" / "shards"), "relative to the deployment's folder of data"
    data = made(allowed, data={"partitions": "[b, {name: a, count: 3}]", "validation": "- v\n- w"}).data
    assert data is not None and data.folder == str(tmp_path / "data")
    assert [file.name for file in (*data.files, *data.validation_files)] == ["a", "b", "v", "w"]
    with pytest.raises(SpecError, match="data.partitions: is required"):
        made(allowed, data={"scheduler": "randomized"})
    with pytest.raises(SpecError, match="partitions cannot be read as YAML"):
        made(allowed, data={"partitions": "[a"})
    schema = parameter_schema(tune).model_dump()
    first, _ = schema["definitions"]["Advanced"]["properties"]["data"]["anyOf"]
    assert first == empty_tab("As the training function reads them")
    drawn = schema["definitions"]["Data"]["properties"]
    assert set(drawn) == set(DataSpec.model_fields), "what is new in the study file is on the form"
    assert schema["definitions"]["Data"]["required"] == ["partitions"], "no form calls it optional"
    assert "default" not in drawn["partitions"] and "HPO_DATA_FOLDER" in drawn["folder"]["description"]
    beside = made(permissions, data={"partitions": "[a]", "folder": "shards"}).data
    assert beside is not None and beside.folder == str(permissions.folder / "shards"), "as its text says"  # type: ignore[operator]


def test_a_form_becomes_the_study_it_says(permissions: Permissions) -> None:
    spec = made(permissions)
    assert (spec.study, spec.seed, spec.cluster.workers) == ("named", 4, 3)  # type: ignore[union-attr]
    assert spec.space["kind"].choices == ["sgd", 16, True, "no", 0.001, "8"]  # type: ignore[union-attr]
    assert spec.space["rate"].type == "float" and spec.search.method == "asha"
    assert spec.pythonpath == [str(permissions.import_folders[0])]


def test_a_study_file_keeps_what_is_not_changed(permissions: Permissions) -> None:
    spec = with_changes(permissions.load("deep/a.yaml"), "other", permissions, seed=None, cluster=None)
    assert (spec.study, spec.seed, spec.search.method, spec.cluster.kind) == ("other", 0, "random", "local")


def test_conditions_whole_numbers_and_grids(permissions: Permissions) -> None:
    numbers = [
        {"name": "width", "low": 8, "high": 32, "whole": True, "step": 8},
        {"name": "momentum", "low": 0, "high": 0.9, "grid_points": 4, "only_if": "kind = sgd, 16", "fixed": True},
    ]
    spec = made(permissions, numbers=numbers, method={"method": "grid"})
    assert spec.space["width"].step == 8 and spec.space["width"].type == "int"  # type: ignore[union-attr]
    assert spec.space["momentum"].when == {"kind": ["sgd", 16]} and spec.space["momentum"].static
    assert spec.search.points == {"momentum": 4}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"numbers": [], "choices": []}, "no hyperparameter is given"),
        ({"choices": [{"name": "rate", "values": ["a"]}]}, "two rows for rate"),
        ({"numbers": [{"name": "w", "low": 1.5, "high": 4, "whole": True}]}, "low = 1.5 is no whole number"),
        ({"numbers": [{"name": "w", "low": 1, "high": 4, "only_if": "kind"}]}, "write PARAMETER = VALUE"),
        ({"numbers": [{"name": "w", "low": 1, "high": 4, "grid_points": 3}]}, "method Grid alone"),
    ],
)
def test_rows_that_make_no_study_say_why(permissions: Permissions, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        made(permissions, **changes)


def test_what_a_form_sends_means_what_a_study_file_says() -> None:
    """A form sends defaults and nulls; given in a file they would count as chosen."""
    read = TypeAdapter(Method).validate_python
    sent = {"method": "asha", "configs": 30, "max_resource": 27, "min_resource": None, "variant": "promotion",
            "brackets": None}  # fmt: skip
    assert read(sent) == read({"method": "asha", "configs": 30, "max_resource": 27})
    space = {"study": "s", "metric": {"name": "loss"}, "space": {"x": {"type": "float", "low": 0, "high": 1}}}
    for eta in ({}, {"reduction_factor": 3}):
        said = {"method": "asha", "configs": 30, "max_resource": 81} | eta
        in_file = StudySpec.from_plain(space | {"search": said}, "file").search
        assert read(sent | said) == in_file, "3 that is written out decides the first rung, here as there"
    assert read({"hyperband": "hyperband", "max_resource": 9}) == read({"method": "hyperband", "max_resource": 9})
    assert read({"grid": "grid", "max_resource": 9}).method == "grid"
    with pytest.raises(ValidationError, match="method is required"):
        read({"max_resource": 3})


FLAT: dict[str, Any] = {
    "objective": "models.net:fit",
    "numbers": [{"name": "rate", "low": 1e-4, "high": 1, "step": 1e-4, "only_if": "kind = sgd"}],
    "choices": [{"name": "kind", "values": ["sgd", "16"], "ordered": False, "fixed": True}],
    "method": {"method": "asha", "configs": 9, "max_resource": 9, "reduction_factor": 3, "min_resource": 1},
    "cluster": {"workers": 4},
    "seed": 7,
    "limits": {"seconds": 500},
    "packing": {"policy": "worst_fit", "job_memory": "2GB"},
    "further": {"best_of": "highest_rung"},
    "experiment": "ours",
    "optuna": "on",
    "training": None,
}
"""Parameters of a run as they were saved before anything was folded."""


def of_a_run(permissions: Permissions, parameters: dict[str, Any]) -> StudySpec:
    """The study of a run with these parameters, by the server's check and the flow's own."""
    validate(parameters, parameter_schema(tune).model_dump(), raise_on_error=True)
    found = tune.validate_parameters(parameters)
    form = read_form(FilledIn, found)
    return with_changes(
        study_of(form, permissions, form.cluster), "named", permissions, seed=None, cluster=form.cluster
    )


def test_parameters_that_were_saved_before_anything_was_folded_make_the_same_study(permissions: Permissions) -> None:
    said = of_a_run(permissions, FLAT | {"metric": {"name": "loss", "mode": "max"}})
    assert (said.seed, said.stop.seconds, said.best_of, said.tracking.experiment) == (7, 500, "highest_rung", "ours")
    assert said.search.reduction_factor == 3 and said.packing is not None  # type: ignore[union-attr]
    drawn = as_drawn(FLAT | {"metric": {"name": "loss", "mode": "max"}})
    assert drawn.keys() <= {*FilledIn.basic, FOLD} and drawn["advanced"]["limits"] == {"seconds": 500}
    assert drawn["numbers"][0]["advanced"] == {"step": 1e-4, "only_if": "kind = sgd"}
    assert drawn["method"]["advanced"] == {"reduction_factor": 3, "min_resource": 1}
    assert drawn["cluster"] == {"workers": 4}
    assert "training" not in drawn["advanced"], "null, which the form does not take"
    assert of_a_run(permissions, drawn).plain() == said.plain()
    assert as_drawn(drawn) == drawn


def test_a_deployment_without_what_the_form_needs_is_registered_with_it(permissions: Permissions) -> None:
    entries = [
        {"name": "own", "entrypoint": "hpo_flows.deployed.flows:tune", "parameters": FLAT},
        {"name": "x", "entrypoint": "a:b"},
    ]
    own, other = begun_as_drawn(entries)
    assert other == entries[1] and own["parameters"]["metric"] == {"name": "val_loss", "mode": "min"}
    bare = begun_as_drawn([{"entrypoint": "hpo_flows.deployed.flows:tune"}])[0]["parameters"]
    assert bare == {"metric": {"name": "val_loss", "mode": "min"}, "numbers": [], "choices": []}
    assert of_a_run(permissions, own["parameters"]).metric.name == "val_loss"


def test_a_setting_stands_inside_or_outside_of_the_fold(permissions: Permissions) -> None:
    flat = {name: value for name, value in FLAT.items() if name != "seed"} | {"metric": {"name": "loss"}}
    assert (
        of_a_run(permissions, flat | {"seed": 3}).seed == of_a_run(permissions, flat | {"advanced": {"seed": 3}}).seed
    )
    with pytest.raises(SpecError, match=r"form: .*seed stands in advanced and beside it; give it once"):
        of_a_run(permissions, flat | {"seed": 7, "advanced": {"seed": 3}})


def test_a_form_says_where_a_study_runs() -> None:
    permissions = Permissions(("models:fit",), clusters=("tls://a:1",))
    spec = make_spec(objective="models:fit")
    local = LocalWorkers(workers=3)
    made = with_changes(spec, "one", permissions, seed=None, cluster=local)
    assert made.cluster == LocalClusterSpec(workers=3)
    at = DaskScheduler(address="tls://a:1")
    made = with_changes(spec, "two", permissions, seed=None, cluster=at)
    assert made.cluster == AddressClusterSpec(address="tls://a:1")


def test_what_a_form_does_not_take_is_said_without_passwords() -> None:
    with pytest.raises(SpecError, match="configs") as raised:
        resume.fn(study="a", configs="https://me:pw-of-mine@host/x")
    assert "pw-of-mine" not in str(raised.value)
