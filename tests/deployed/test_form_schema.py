"""What a form shows: fields, folds and tabs as they open."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
from prefect.utilities.callables import parameter_schema
from pydantic import TypeAdapter

from hpo_core.search.registry import BY_NAME
from hpo_flows.compare import compare
from hpo_flows.deployed.flows import rerun, resume, tune, tune_file
from hpo_flows.deployed.form import (
    Choice,
    FilledIn,
    Number,
    read_form,
)
from hpo_flows.deployed.form_schema import Method
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.retrain import retrain
from tests.conftest import World, fresh
from tests.deployed.filled_forms import made


def test_schema_has_a_tab_for_each_method_and_asks_for_no_mapping() -> None:
    schema = parameter_schema(tune).model_dump()
    fields = schema["properties"]
    tabs = [schema["definitions"][tab["$ref"].rsplit("/", 1)[1]] for tab in fields["method"]["anyOf"]]
    assert [tab["title"] for tab in tabs] == [
        "ASHA", "Successive halving", "Hyperband", "PASHA", "Population", "Random", "Grid",
    ]  # fmt: skip
    inner = [item for tab in tabs for item in tab["properties"].items()]
    assert not [name for name, field in inner if field.get("type") == "object"]
    assert all(field.get("description") for name, field in inner)
    assert all(field.get("description") for field in fields.values())
    for tab in tabs:  # a tab as it opens is a search
        assert "description" not in tab, "the docstring of a class, run together, repeated the fields"
        assert "default" not in str(everything(tab).get("reduction_factor", {})), "it would be sent as if chosen"
        method = next(iter(tab["properties"]))
        opened = as_it_opens(tab)
        assert TypeAdapter(Method).validate_python(opened).method == method
        budget = {"configs": 30, "max_resource": 27}
        assert all(opened[name] == value for name, value in budget.items() if name in opened)


def everything(tab: dict[str, Any]) -> dict[str, Any]:
    """The fields of a tab, and those in its fold."""
    fold = tab["properties"].get("advanced", {"anyOf": [{}, {"properties": {}}]})["anyOf"][1]["properties"]
    return {**tab["properties"], **fold}


def test_every_tab_as_it_opens_is_a_search_of_a_like_size(permissions: Permissions) -> None:
    """The tab Population ran 600 trials, and the others 30."""
    schema = parameter_schema(tune).model_dump()
    tabs = [schema["definitions"][tab["$ref"].rsplit("/", 1)[1]] for tab in schema["properties"]["method"]["anyOf"]]
    sizes, tops = {}, {}
    for tab in tabs:
        row = {"name": "x", "low": 0.0, "high": 1.0} | ({"grid_points": 30} if tab["title"] == "Grid" else {})
        world = World(1, workers=2)
        study = fresh(
            made(permissions, method=as_it_opens(tab), numbers=[row], choices=[], metric={"name": "loss"}), None, world
        )
        assert not world.play(study, steps=5_000) and study.finished
        sizes[tab["title"]] = len(study.state.trials)
        tops[tab["title"]] = study.spec.search.outline().max_resource
    assert set(tops.values()) == {27}, tops
    assert len(sizes) == 7 and max(sizes.values()) <= 2 * min(sizes.values()), sizes


@pytest.mark.parametrize(
    ("flow", "sent"),
    [
        (tune, {"objective": "a:b"}),
        (tune_file, {"file": "a.yaml"}),
        (resume, {"study": "a"}),
        (rerun, {"study": "a"}),
        (retrain, {"model": "m", "data": "d"}),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_what_a_run_leaves_out_is_accepted(flow: Any, sent: dict[str, Any]) -> None:
    """Prefect validates the defaults of a flow as if they had been sent."""
    defaults = {name: found.default for name, found in inspect.signature(flow.fn).parameters.items()}
    found = flow.validate_parameters(defaults | sent)
    assert {name: value for name, value in found.items() if value is not None} == sent
    form = read_form(next(iter(get_type_hints(flow.fn).values())), found)
    assert form.model_dump(mode="json", exclude_unset=True) == sent


def shown_at_once(schema: dict[str, Any], definition: dict[str, Any]) -> list[str]:
    """Labels of all inputs of a form as it opens, lists without rows."""
    found = []
    for name, field in definition["properties"].items():
        one = resolved(schema, field["anyOf"][0] if "anyOf" in field else field)
        inside = shown_at_once(schema, one) if "properties" in one else [""]
        found += [f"{name}.{inner}".strip(".") for inner in inside]
    return found


def resolved(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any]:
    at = field.get("$ref")
    return field if at is None else schema["definitions"][at.rsplit("/", 1)[1]]


def everywhere(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping within a schema."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from everywhere(one)


FLOWS = [tune, tune_file, resume, rerun, retrain, compare]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_no_form_writes_type_none_or_marks_of_markdown(flow: Any) -> None:
    """Of a field of type null both UIs write 'Property is type "None"'; the newer one draws no Markdown."""
    schema = parameter_schema(flow).model_dump()
    for one in everywhere(schema):
        assert one.get("type") != "null", one
        assert "`" not in str(one.get("description", "")), one["description"]


def test_the_form_shows_what_everybody_sets_and_folds_the_rest() -> None:
    schema = parameter_schema(tune).model_dump()
    fields = sorted(schema["properties"], key=lambda name: schema["properties"][name]["position"])
    assert (fields[0], fields[-1]) == ("objective", "advanced")
    assert shown_at_once(schema, schema) == [
        "objective", "name", "metric.name", "metric.mode", "numbers", "choices", "method.asha", "method.configs",
        "method.max_resource", "sampler", "cluster.workers",
    ]  # fmt: skip
    row = schema["definitions"]["Number"]
    assert shown_at_once(schema, row) == ["name", "low", "high", "whole", "log"]


def test_what_a_study_needs_is_not_called_optional() -> None:
    schema = parameter_schema(tune).model_dump()
    assert schema["required"] == ["objective", "metric", "numbers", "choices"]
    begins = {name: schema["properties"][name].get("default") for name in schema["required"]}
    wanted = {"objective": None, "metric": {"name": "val_loss", "mode": "min"}, "numbers": [], "choices": []}
    assert begins == wanted
    for name in ("numbers", "choices"):
        assert schema["properties"][name]["minItems"] == 0, "or the newer UI takes an empty list for a missing one"
    assert schema["definitions"]["Metric"]["required"] == ["name"]
    assert "one row at least" in schema["properties"]["numbers"]["description"]


def test_every_setting_is_on_the_form_once() -> None:
    """Shown or in a fold: all fields of the form, of its rows and of each method, as before some were folded."""
    schema = parameter_schema(tune).model_dump()
    drawn = list(schema["properties"]) + list(schema["definitions"]["Advanced"]["properties"])
    assert sorted({*FilledIn.model_fields, "advanced"}) == sorted(drawn)
    for title, model in {"Number": Number, "Choice": Choice}.items():
        fields = schema["definitions"][title]["properties"]
        fold = fields.pop("advanced")["anyOf"][1]["properties"]
        assert sorted([*fields, *fold]) == sorted(model.model_fields)
    for method in schema["properties"]["method"]["anyOf"]:
        name = resolved(schema, method)["title"]
        settings = next(one for one in BY_NAME.values() if one.title == name)
        fields = resolved(schema, method)["properties"]
        fold = fields.pop("advanced", {"anyOf": [0, {"properties": {}}]})["anyOf"][1]["properties"]
        expected = set(settings.model_fields) - settings.only_in_files - {"method"}
        assert {*fields, *fold} - {next(iter(fields))} == expected, name


def as_it_opens(tab: dict[str, Any]) -> dict[str, Any]:
    """What a tab holds before anything is typed: the defaults of its fields."""
    assert "default" not in tab, "the newer UI would mix it with those of the tab before"
    return {name: field["default"] for name, field in tab["properties"].items() if "default" in field}


@pytest.mark.parametrize("flow", [tune, tune_file, resume, rerun, retrain], ids=lambda flow: flow.name)
def test_prefect_s_older_ui_keeps_the_tab_that_was_opened_and_nothing_has_to_leave_none(flow: Any) -> None:
    """It shows the tab that has most keys of the value, the first of several; what opens is the whole field's default,
    or else the tab's own."""
    schema = parameter_schema(flow).model_dump()
    for name, field in schema["properties"].items():
        assert field.get("default", "") is not None, f"{name}: None would be sent, or be a tab"
        if "anyOf" not in field:
            continue
        assert "default" not in field, f"{name}: another tab would take it when it opens"
        tabs = [schema["definitions"][tab["$ref"].rsplit("/", 1)[1]] for tab in field["anyOf"] if "$ref" in tab]
        for index, tab in enumerate(tabs):
            common = [len(as_it_opens(tab).keys() & other["properties"].keys()) for other in tabs]
            assert common.index(max(common)) == index, (
                f"{name}: {tab['title']} becomes {tabs[common.index(max(common))]}"
            )
            for inner, of_tab in tab["properties"].items():
                kinds = [one.get("type") for one in of_tab.get("anyOf", [])]
                assert "null" not in kinds and of_tab.get("default", "") is not None, f"{name}.{inner}"
