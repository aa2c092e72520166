"""Whatever a description says, it is accepted or refused soon, in little memory, and by a SpecError alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpo_core import Study, StudySpec, load_spec
from hpo_core.journal.codec import encode_entry
from hpo_core.model.errors import SpecError
from hpo_flows.deployed.permissions import Permissions
from tests.deployed.filled_forms import filled_in
from tests.security.descriptions import ATTACKS, LARGEST, ROOM, SECONDS, attack, begun, measured, plain

MESSAGE = 20_000
"""Characters of an error at most, whatever was sent."""


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_description_is_accepted_or_refused_in_time(name: str, tmp_path: Path) -> None:
    seen = measured(attack, name, str(tmp_path))
    assert seen.outcome in ("accepted", "refused"), seen
    assert seen.seconds < SECONDS and seen.megabytes < ROOM, seen
    assert len(seen.message) < MESSAGE, "a message repeats what was sent"


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_accepted_study_starts_in_time(name: str) -> None:
    """Rungs, tables of Hyperband, points of a grid: what is reckoned from a description stays as small as it is."""
    seen = measured(begun, name)
    assert seen.outcome == "accepted", seen
    assert seen.seconds < 4 * SECONDS and seen.megabytes < ROOM, seen


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "endless device", "link to itself", "name with NUL"])
def test_a_study_file_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    """A FIFO nobody writes to blocks whoever opens it; /dev/zero never ends."""
    path = tmp_path / "study.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path)
    else:
        path = {"device": Path("/dev/null"), "endless device": Path("/dev/zero"), "name with NUL": Path("a\0b")}[kind]
    seen = measured(load_spec, str(path))
    assert seen.outcome == "refused" and seen.megabytes < ROOM, seen
    assert "Give the path of a study's YAML file" in seen.message or "cannot be read" in seen.message


# Fuzzing: SpecError alone may come out, and what is accepted can be journaled and begun.

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2, 3, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**4000]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["random", "asha", "float", "int", "ordinal", "all", "auto", "x", "a:b", "\ud800", "\0", "1e3"]),
    st.binary(max_size=3),
    st.dates(),
)
KEYS = st.one_of(
    st.sampled_from([
        "study", "objective", "style", "metric", "metrics", "space", "search", "sampler", "seed", "cluster", "training",
        "stop", "checkpoints", "tracking", "prefect", "warm_start", "pythonpath", "name", "mode", "type", "low",
        "high", "log", "step", "choices", "when", "method", "configs", "max_resource", "min_resource",
        "x", "y",
        "reduction_factor", "brackets", "assignment", "rung_system", "variant",
        "rounds", "population", "generations", "perturb", "points", "random", "order",
        "studies", "past",
        "timeout", "retries", "kind", "workers", "address", "mlflow", "experiment", "total_resource",
        "seconds", "target",
    ]),
    st.text(max_size=5),
    SCALARS,
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)
METHODS = ["asha", "sha", "hyperband", "pasha", "pbt", "random", "grid"]
SETTINGS = st.fixed_dictionaries(
    {"method": st.sampled_from(METHODS)},
    optional={
        "configs": st.one_of(st.integers(-1, 300), VALUES),
        "max_resource": st.one_of(st.integers(0, 300), st.just(2**53), VALUES),
        "min_resource": st.one_of(st.integers(0, 300), VALUES),
        "reduction_factor": st.one_of(st.floats(0.5, 10), VALUES),
        "brackets": st.one_of(st.just("all"), st.lists(st.integers(-1, 6), max_size=4), VALUES),
        "population": st.one_of(st.integers(0, 9), VALUES),
        "generations": st.one_of(st.integers(0, 9), VALUES),
        "perturb": st.one_of(st.lists(st.floats(0, 3), max_size=3), VALUES),
        "points": st.one_of(st.dictionaries(st.sampled_from("xy"), st.integers(0, 9) | VALUES, max_size=2), VALUES),
    },
)
PARAMETERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["float", "int", "categorical", "ordinal"])},
    optional={
        "low": SCALARS, "high": SCALARS, "log": st.booleans(), "step": SCALARS,
        "choices": st.lists(SCALARS, max_size=4),
        "when": st.dictionaries(st.sampled_from("xyz"), SCALARS | st.lists(SCALARS, max_size=3), max_size=2),
    },
)  # fmt: skip
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def begin(description: Any) -> None:
    """Create and begin the study, and write what was recorded as a journal does."""
    try:
        spec = StudySpec.from_plain(description)
        study = Study.create(spec)
    except SpecError as error:
        assert len(str(error)) < MESSAGE
        return
    study.ask()
    for entry in study.journal.entries(spec.study):
        encode_entry(entry)
    assert StudySpec.from_plain(spec.plain()) == spec == StudySpec.from_journal(spec.plain())


@FUZZ
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_anything_merged_into_a_description(changes: dict[Any, Any]) -> None:
    begin(plain() | changes)


@FUZZ
@given(SETTINGS, st.dictionaries(KEYS, VALUES, max_size=1))
def test_any_settings_of_a_search(search: dict[str, Any], more: dict[Any, Any]) -> None:
    begin(plain(search=search | more))


@FUZZ
@given(st.dictionaries(st.sampled_from("xyz"), PARAMETERS, max_size=3), st.sampled_from(["random", "grid"]))
def test_any_space(space: dict[str, Any], method: str) -> None:
    search = {"method": method} | ({"configs": 2} if method == "random" else {"points": {"x": 3, "y": 2}})
    begin(plain(space=space, search=search))


@FUZZ
@given(st.dictionaries(st.sampled_from(["space", "search", "metric", "sampler", "stop", "advanced"]), VALUES), VALUES)
def test_any_form(fields: dict[str, Any], row: Any) -> None:
    given = {"objective": "a:b", "metric": {"name": "loss"}, "search": {"random": {"configs": 3}}}
    choices = {"name": "c", "choices": ["a", "b", str(row)], "when": str(row)}
    for rows in ({}, {"space": {"categorical": [choices]}}, {"space": {"float": row}}):
        try:
            made = filled_in(Permissions(("a:b",)), **(given | fields | rows))
        except SpecError as error:
            assert len(str(error)) < MESSAGE
        else:
            begin(made.plain())
