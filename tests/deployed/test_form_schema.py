"""What a form shows: fields, folds and tabs as they open."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from hpo_core.model.space import PARAMETER_TYPES
from hpo_core.search.registry import BY_NAME
from hpo_core.spec import StudySpec
from hpo_flows.compare import compare
from hpo_flows.deployed.flows import rerun, resume, tune, tune_file
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.retrain import retrain
from tests.conftest import World, fresh
from tests.deployed.filled_forms import ASHA, RATE, made

Schema = dict[str, Any]
FLOWS = [tune, tune_file, resume, rerun, retrain, compare]
METHODS = ["ASHA", "Successive halving", "Hyperband", "PASHA", "Population", "Random", "Grid"]


def form_of(flow: Any) -> Schema:
    found: Schema = parameter_schema(flow).model_dump()
    return found


def everywhere(value: Any) -> Iterator[Schema]:
    """Every mapping within a schema."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everywhere(one)


def unfolded(box: Schema) -> Schema:
    """The fields of a box, and those in its fold."""
    fields = dict(box["properties"])
    fold = fields.pop("advanced", {"anyOf": [{}, {"properties": {}}]})
    return fields | fold["anyOf"][1]["properties"]


def tabs(field: Schema) -> dict[str, Schema]:
    """The boxes of a union by their tags."""
    return {tag: box for tab in field["anyOf"] for tag, box in tab["properties"].items()}


def as_it_opens(box: Schema) -> Schema:
    """What a box sends before anything is typed: the defaults of its fields."""
    return {name: field["default"] for name, field in box["properties"].items() if "default" in field}


def shown_at_once(definition: Schema) -> list[str]:
    """Labels of all inputs of a form as it opens, lists without rows."""
    found = []
    for name, field in definition["properties"].items():
        one = field["anyOf"][0] if "anyOf" in field else field
        inside = shown_at_once(one) if "properties" in one else [""]
        found += [f"{name}.{inner}".strip(".") for inner in inside]
    return found


def test_schema_has_a_tab_for_each_method_and_asks_for_no_mapping() -> None:
    fields = form_of(tune)["properties"]
    assert [tab["title"] for tab in fields["search"]["anyOf"]] == METHODS
    assert all(field.get("description") for field in fields.values())
    for tag, box in tabs(fields["search"]).items():
        assert all(field.get("description") for field in unfolded(box).values())
        assert not [name for name, field in unfolded(box).items() if field.get("type") == "object"]
        assert "Arguments:" not in box["description"], "the docstring of a class, run together, repeated the fields"
        assert "default" not in unfolded(box).get("reduction_factor", {}), "it would be sent as if chosen"
        budget = {"configs": 30, "max_resource": 27}
        assert all(as_it_opens(box)[name] == value for name, value in budget.items() if name in as_it_opens(box)), tag


def test_every_tab_as_it_opens_is_a_search_of_a_like_size(permissions: Permissions) -> None:
    """The tab Population ran 600 trials, and the others 30."""
    sizes, tops = {}, {}
    for tag, box in tabs(form_of(tune)["properties"]["search"]).items():
        space = {"float": [{"name": "x", "low": 0.0, "high": 1.0}]}
        search = {tag: as_it_opens(box) | ({"advanced": {"points": "{x: 30}"}} if tag == "grid" else {})}
        study = fresh(made(permissions, search=search, space=space, metric={"name": "loss"}), None, World(1, workers=2))
        world = World(1, workers=2)
        assert not world.play(study, steps=5_000) and study.finished
        sizes[tag] = len(study.state.trials)
        tops[tag] = study.spec.search.outline().max_resource
    assert set(tops.values()) == {27}, tops
    assert len(sizes) == 7 and max(sizes.values()) <= 2 * min(sizes.values()), sizes


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
def test_no_form_writes_type_none_or_marks_of_markdown(flow: Any) -> None:
    """Of a field of type null the UI writes 'Property is type "None"'; it draws no Markdown."""
    for one in everywhere(form_of(flow)):
        assert one.get("type") != "null", one
        description = one.get("description", "")
        assert isinstance(description, dict) or ("`" not in description and "Arguments:" not in description), one


def test_the_form_shows_what_everybody_sets_and_folds_the_rest() -> None:
    schema = form_of(tune)
    fields = sorted(schema["properties"], key=lambda name: schema["properties"][name]["position"])
    assert (fields[0], fields[-1]) == ("objective", "advanced")
    assert shown_at_once(schema) == [
        "objective", "name", "search.asha.configs", "search.asha.max_resource", "metric.name", "metric.mode",
        *(f"space.{one}" for one in ("float", "int", "categorical")), "sampler.name", "sampler.arguments",
        "cluster.local.workers",
    ]  # fmt: skip
    rows = {name: one["items"]["properties"] for name, one in schema["properties"]["space"]["properties"].items()}
    assert list(rows["float"]) == ["name", "low", "high", "log", "advanced"]
    assert list(rows["categorical"]) == ["name", "choices", "type", "advanced"]


def test_what_a_study_needs_is_not_called_optional() -> None:
    schema = form_of(tune)
    assert schema["required"] == ["objective", "search", "metric", "space"]
    assert schema["properties"]["metric"]["required"] == ["name"]
    data = schema["properties"]["advanced"]["anyOf"][1]["properties"]["data"]["anyOf"][1]
    assert data["required"] == ["partitions"] and "default" not in data["properties"]["partitions"]
    assert "HPO_DATA_FOLDER" in data["properties"]["folder"]["description"]
    for rows in schema["properties"]["space"]["properties"].values():
        assert rows["items"]["required"][0] == "name"
    assert form_of(compare)["required"] == ["studies"] and form_of(retrain)["required"] == ["model", "data"]


def test_every_setting_of_a_study_file_is_on_the_form_once() -> None:
    """Whatever is new there is on the form without another line."""
    fields = unfolded(form_of(tune))
    assert set(fields) == set(StudySpec.model_fields) - {"study", "pythonpath"} | {"name"}
    for tag, box in tabs(fields["search"]).items():
        assert set(unfolded(box)) == set(BY_NAME[tag].model_fields) - {"method"}
    kinds = {known.model_fields["type"].default: known for known in PARAMETER_TYPES}
    rows = fields["space"]["properties"]
    assert list(rows) == list(kinds)
    for tag, one in rows.items():
        assert set(unfolded(one["items"])) - {"type"} == set(kinds[tag].model_fields) - {"type"} | {"name"}
    for name in ("packing", "data", "share", "training", "scaling", "stop", "checkpoints", "prefect"):
        (model,) = [one for one in every_model(StudySpec.model_fields[name].annotation) if one]
        assert set(fields[name]["anyOf"][1]["properties"]) == set(model.model_fields), name
    titles = fields["packing"]["anyOf"][1]["properties"]
    assert [titles[name]["title"] for name in ("by", "most", "mps")] == [
        "Need decided by", "Most jobs on a device", "Share GPUs by MPS",
    ]  # fmt: skip


def every_model(annotation: Any) -> list[Any]:
    inner = getattr(annotation, "__args__", ())
    return [annotation] if hasattr(annotation, "model_fields") else [one for a in inner for one in every_model(a)]


def test_a_part_that_is_missing_in_a_fold_or_tab_is_left_to_the_run() -> None:
    """Prefect would say of the whole section that it "is not valid under any of the given schemas"."""
    good = {"objective": "a:b", "search": ASHA, "metric": {"name": "loss"}, "space": {"float": [RATE]}}
    for more in (
        {"advanced": {"data": {"scheduler": "exact"}}},
        {"search": {"asha": {"configs": -1, "max_resource": 3}}},
        {"advanced": {"seed": -1, "training": {"fail_fast": -1}}},
    ):
        assert not validate(good | more, form_of(tune))
    (missing,) = validate(good | {"space": {"float": [{"name": "x", "low": 0}]}}, form_of(tune))
    assert missing.message == "'high' is a required property", "of a row it says so beside the field"


@pytest.mark.parametrize("flow", [tune, tune_file], ids=lambda flow: flow.name)
def test_the_ui_keeps_the_tab_that_was_opened(flow: Any) -> None:
    """It keeps what a field held when another tab has a field of the same key, shows it, and does not send it."""
    for union in (one for one in everywhere(form_of(flow)) if isinstance(one.get("anyOf"), list)):
        assert "default" not in union, "another tab would take it when it opens"
        keys = [key for tab in union["anyOf"] for key in tab["properties"]]
        assert len(set(keys)) == len(keys), keys
        if all(tab["properties"] for tab in union["anyOf"]):
            for tag, box in tabs(union).items():
                assert as_it_opens(box) or "required" in box or box["default"] == {}, f"{tag} would not be sent"
