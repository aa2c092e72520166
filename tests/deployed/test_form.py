"""The form: fields and tabs as they open, and the study that a filled-in form describes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from hpo_core.model.errors import SpecError
from hpo_core.model.space import PARAMETER_TYPES
from hpo_core.search.registry import BY_NAME
from hpo_core.spec import StudySpec
from hpo_core.spec.sections import AddressClusterSpec, LocalClusterSpec, LocalCudaClusterSpec
from hpo_flows.compare import compare
from hpo_flows.deployed.flows import rerun, resume, tune, tune_file
from hpo_flows.deployed.form import StudyForm, study_of
from hpo_flows.deployed.permissions import NotAllowedError, Permissions
from hpo_flows.retrain import retrain
from tests.conftest import World, fresh
from tests.deployed.filled_forms import FILLED, RATE, ROWS, STUDY, made

Schema = dict[str, Any]
FLOWS = [tune, tune_file, resume, rerun, retrain, compare]
METHODS = ["ASHA", "Successive halving", "Hyperband", "PASHA", "Population", "Random", "Grid"]
ALLOWED = Permissions(("models.net:fit", "models.net:load"), clusters=("tls://a:1", "slurm"))


def form_of(flow: Any) -> Schema:
    found: Schema = parameter_schema(flow).model_dump()
    return found


def everywhere(value: Any) -> Iterator[Schema]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everywhere(one)


def tabs(field: Schema) -> dict[str, Schema]:
    """The boxes of a union by their tags."""
    return {tag: box for tab in field["anyOf"] for tag, box in tab["properties"].items()}


def as_it_opens(box: Schema) -> Schema:
    """What a box sends before anything is typed: the defaults of its fields."""
    return {name: field["default"] for name, field in box["properties"].items() if "default" in field}


def test_every_setting_of_a_method_and_a_parameter_is_a_field_of_its_own() -> None:
    fields = form_of(tune)["properties"]
    assert [tab["title"] for tab in fields["search"]["anyOf"]] == METHODS
    for tag, box in tabs(fields["search"]).items():
        assert set(box["properties"]) == set(BY_NAME[tag].model_fields) - {"method"}
        assert all(field.get("description") and field.get("type") != "object" for field in box["properties"].values())
        assert "default" not in box["properties"].get("reduction_factor", {}), "it would be sent as if chosen"
    assert list(tabs(fields["search"])["asha"]["properties"])[:3] == ["configs", "max_resource", "variant"]
    rows = {name: one["items"]["properties"] for name, one in fields["space"]["properties"].items()}
    assert list(rows["float"]) == ["name", "low", "high", "log", "step", "when"]
    for known in PARAMETER_TYPES:
        tag = known.model_fields["type"].default
        assert set(rows[tag]) - {"type"} == set(known.model_fields) - {"type"} | {"name"}


def test_what_a_study_needs_is_asked_for_first_and_not_called_optional() -> None:
    schema = form_of(tune)
    fields = sorted(schema["properties"], key=lambda name: schema["properties"][name]["position"])
    assert fields == ["objective", "name", "search", "metric", "space", "sampler", "cluster", "advanced"]
    assert schema["required"] == ["objective", "search", "metric", "space"]
    assert schema["properties"]["metric"]["required"] == ["name"]
    assert all(one["items"]["required"][0] == "name" for one in schema["properties"]["space"]["properties"].values())
    assert form_of(compare)["required"] == ["studies"] and form_of(retrain)["required"] == ["model", "data"]


def test_every_tab_as_it_opens_is_what_a_study_file_says_and_of_a_like_size() -> None:
    """A form sends defaults, which given in a file would count as chosen; Population once ran 600 trials."""
    sizes = {}
    for tag, box in tabs(form_of(tune)["properties"]["search"]).items():
        budget = {name: box["properties"][name]["default"] for name in box["properties"] if name in BUDGET}
        points = {"points": "{x: 30}"} if tag == "grid" else {}
        space, metric = {"float": [{"name": "x", "low": 0.0, "high": 1.0}]}, {"name": "loss"}
        spec = made(ALLOWED, search={tag: as_it_opens(box) | points}, space=space, metric=metric)
        in_file = {"method": tag} | budget | ({"points": {"x": 30}} if points else {})
        assert spec.search == StudySpec.from_plain(spec.plain() | {"search": in_file}).search
        study, world = fresh(spec, None, World(1, workers=2)), World(1, workers=2)
        assert not world.play(study, steps=5_000) and study.finished
        sizes[tag] = len(study.state.trials)
        assert study.spec.search.outline().max_resource == 27
    assert len(sizes) == 7 and max(sizes.values()) <= 2 * min(sizes.values()), sizes


BUDGET = ("configs", "max_resource", "population", "generations", "steps_per_generation")


@pytest.mark.parametrize(
    ("flow", "sent"),
    [
        (tune_file, {"file": "a.yaml"}),
        (resume, {"study": "a"}),
        (rerun, {"study": "a"}),
        (retrain, {"model": "m", "data": "d"}),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_what_a_run_leaves_out_is_accepted(flow: Any, sent: Schema) -> None:
    """Prefect validates the defaults of a flow as if they had been sent."""
    defaults = {name: found.default for name, found in inspect.signature(flow.fn).parameters.items()}
    found = flow.validate_parameters(defaults | sent)
    assert {name: value for name, value in found.items() if value is not None} == sent
    form = next(iter(get_type_hints(flow.fn).values())).read(found)
    assert form.model_dump(mode="json", exclude_unset=True) == sent


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_the_ui_draws_every_form_and_sends_the_tab_that_is_open(flow: Any) -> None:
    for one in everywhere(form_of(flow)):
        assert one.get("type") != "null", "the UI writes 'Property is type None'"
        description = one.get("description", "")
        assert isinstance(description, dict) or ("`" not in description and "Arguments:" not in description), one
        if not isinstance(one.get("anyOf"), list):
            continue
        assert "default" not in one, "another tab would take it when it opens"
        keys = [key for tab in one["anyOf"] for key in tab["properties"]]
        assert len(set(keys)) == len(keys), "what another tab had under a key is shown, and not sent"
        for tag, box in tabs(one).items():
            assert as_it_opens(box) or "required" in box or box["default"] == {}, f"{tag} would not be sent"


def test_a_bound_in_a_tab_is_left_to_the_run() -> None:
    """Prefect would say of the whole section that it "is not valid under any of the given schemas"."""
    assert not validate(FILLED | {"search": {"asha": {"configs": -1, "max_resource": 3}}}, form_of(tune))
    (missing,) = validate(FILLED | {"space": {"float": [{"name": "x", "low": 0}]}}, form_of(tune))
    assert missing.message == "'high' is a required property", "of a row it says so beside the field"


def test_each_kind_of_parameter_and_yaml_in_a_field_is_as_in_a_study_file() -> None:
    found = study_of(StudyForm.read(ROWS), "named", ALLOWED)
    assert found.plain() == StudySpec.from_plain(STUDY | {"pythonpath": []}).plain()
    beside = study_of(StudyForm.read(ROWS | {"advanced": None, "constants": {"data": "a.npz"}}), "named", ALLOWED)
    assert beside.constants == found.constants, "a caller may give a setting of a study file by its name, too"


@pytest.mark.parametrize(
    ("cluster", "found"),
    [
        (None, LocalClusterSpec(workers=2)),
        ({"local": {"workers": "3"}}, LocalClusterSpec(workers=3)),
        ({"address": {"address": "tls://a:1"}}, AddressClusterSpec(address="tls://a:1")),
        ({"local_cuda": {}}, LocalCudaClusterSpec()),
    ],
)
def test_a_form_says_where_a_study_runs(cluster: Any, found: Any) -> None:
    assert made(ALLOWED, cluster=cluster).cluster == found


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
        ({"seed": 7, "advanced": "{seed: 3}"}, "form.advanced: seed has a place beside it; give it there alone"),
        ({"advanced": "{name: ["}, "form.advanced cannot be read as YAML"),
        ({"advanced": "seed"}, "form.advanced = 'seed' must be settings as in a study file"),
        ({"advanced": "{seeds: 3}"}, "form: seeds: unknown key"),
        ({"advanced": "{packing: {most: 0}}"}, "form: packing.most: "),
        ({"advanced": "{training: {gang: 4}}"}, "training.gang = 4 needs 4 slots at once, and cluster.workers gives 2"),
        ({"advanced": "{share: {weight: 2}}"}, "share.pool is absent"),
        # lines of a job script run code, also where the kind is allowed for study files
        (
            {"cluster": {"slurm": {"directives": ["--wrap=curl example.org"]}}},
            r"form.cluster = .* must be one of \{local",
        ),
        (
            {"advanced": "{cluster: {kind: slurm, directives: [--wrap=x]}}"},
            "form.advanced: cluster has a place beside it",
        ),
    ],
)
def test_what_makes_no_study_says_why(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        made(ALLOWED, **changes)


def test_where_code_comes_from_and_partitions_lie_is_the_worker_s(permissions: Permissions) -> None:
    asked = "{pythonpath: [/var/tmp], study: other, data: {partitions: [b, {name: a, count: 3}], folder: shards}}"
    spec = made(permissions, advanced=asked)
    assert spec.pythonpath == [str(permissions.import_folders[0])] and spec.study == "named"
    assert spec.data is not None and spec.data.folder == str(permissions.folder / "shards")  # type: ignore[operator]
    with pytest.raises(NotAllowedError, match="checkpoints.folder"):
        made(permissions, checkpoints={"folder": "s3://elsewhere"})


def test_what_a_form_does_not_take_is_said_without_passwords() -> None:
    with pytest.raises(SpecError, match="configs") as raised:
        resume.fn(study="a", configs="https://me:pw-of-mine@host/x")
    assert "pw-of-mine" not in str(raised.value)
