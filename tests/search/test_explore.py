from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.model.trial import Params
from hpo_core.search.evolution import Explorer
from hpo_core.search.pbt import PbtSearch
from tests.conftest import make_spec

SPACE: dict[str, Any] = {
    "lr": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99},
    "width": {"type": "int", "low": 8, "high": 64, "step": 8},
    "heads": {"type": "int", "low": 1, "high": 3},
    "batch": {"type": "ordinal", "choices": [16, 32, 64, 128]},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
    "beta": {"type": "float", "low": 0.5, "high": 0.999, "when": {"optimizer": "adam"}},
    "depth": {"type": "int", "low": 1, "high": 9},
}
PARENT: Params = {
    "lr": 1e-3, "momentum": 0.5, "width": 32, "heads": 2, "batch": 64, "optimizer": "adam", "beta": 0.9, "depth": 4,
}  # fmt: skip


def explorer(space: dict[str, Any] = SPACE, **changes: Any) -> Explorer:
    spec = make_spec(space=space, search={"method": "pbt", "static": [n for n in ["depth"] if n in space], **changes})
    assert isinstance(spec.search, PbtSearch)
    return spec.search.explorer(spec.search_space(), seed=1)


def children(parent: Params = PARENT, count: int = 300, **changes: Any) -> list[Params]:
    made = explorer(**changes)
    return [made.explore(parent, number) for number in range(count)]


def test_each_kind_changes_as_specified() -> None:
    found = children()
    assert {round(child["lr"], 9) for child in found} == {0.0008, 0.0012}
    assert {round(child["momentum"], 9) for child in found} == {0.4, 0.6}
    assert {child["batch"] for child in found} == {32, 128}, "the next lower or the next higher choice"
    assert {child["optimizer"] for child in found} == {"sgd", "adam"}, "drawn anew"
    assert {child["depth"] for child in found} == {4}, "static"
    assert {child["width"] for child in found} == {24, 40}, "32 * 0.8 and 32 * 1.2 on the grid of 8"
    assert {child["heads"] for child in found} == {1, 3}, "a factor that rounds to no change takes one step"
    assert all(("beta" in child) == (child["optimizer"] == "adam") for child in found)
    ups = sum(child["lr"] > 1e-3 for child in found)
    assert 110 < ups < 190, "both factors are equally likely"


def test_what_a_choice_makes_active_is_drawn() -> None:
    parent = {name: value for name, value in PARENT.items() if name != "beta"} | {"optimizer": "sgd"}
    betas = [child["beta"] for child in children(parent) if "beta" in child]
    assert len({round(beta, 6) for beta in betas}) > 100 and all(0.5 <= beta <= 0.999 for beta in betas)


def test_a_float_with_a_step_goes_to_the_neighbour_where_a_factor_rounds_back() -> None:
    space = {"x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.1}}

    def reached(value: float, **changes: Any) -> set[float]:
        return {round(child["x"], 9) for child in children({"x": value}, space=space, **changes)}

    assert reached(0.1) == {0.0, 0.2}, "0.08 and 0.12 are both 0.1 on the grid"
    assert reached(0.2) == {0.1, 0.3} and reached(0.1 + 0.2) == {0.2, 0.4}
    assert reached(0.5) == {0.4, 0.6} and reached(1.0) == {0.8, 1.0}
    assert reached(0.3, perturb=[1.0]) == {0.3}


def test_zero_is_no_trap() -> None:
    assert {round(child["momentum"], 9) for child in children(PARENT | {"momentum": 0.0})} == {0.0, 0.198}


def test_resampling_probability() -> None:
    for made in (children(count=2000, selection="truncation"), children(count=2000, resample=0.25)):
        drawn = [child["lr"] for child in made if round(child["lr"], 9) not in (0.0008, 0.0012)]
        assert 425 < len(drawn) < 575, "ASHA A.3: with truncation a quarter is drawn anew"
        assert len(set(drawn)) == len(drawn)


def test_a_child_depends_on_its_number_alone() -> None:
    one, two = explorer(), explorer()
    two.explore(PARENT, 5)
    assert one.explore(PARENT, 17) == two.explore(PARENT, 17)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.lists(st.floats(0.01, 100), min_size=1, max_size=4))
def test_never_outside_the_space(number: int, resample: float, perturb: list[float]) -> None:
    made = explorer(resample=resample, perturb=perturb)
    params: Params = dict(PARENT)
    space = make_spec(space=SPACE).search_space()
    for step in range(12):
        params = made.explore(params, number + step)
        assert space.complaints(params) == []
