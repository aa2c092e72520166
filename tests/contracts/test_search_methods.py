from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpo_core.model.events import Entry
from hpo_core.spec import StudySpec
from tests.contract_suites.search_method_contract import SearchMethodContract
from tests.methods import ALL, SEARCHES, judge, spec_of


class TestSearchMethods(SearchMethodContract):
    @pytest.fixture(params=ALL)
    def spec(self, request: pytest.FixtureRequest) -> StudySpec:
        return spec_of(request.param)

    def check_decisions(self, spec: StudySpec, entries: Sequence[Entry]) -> None:
        if len(spec.metrics) < 2:
            judge(spec, entries)

    def has_fixed_length(self, spec: StudySpec) -> bool:
        search = spec.search
        return not (search.method == "pasha" or (search.method == "asha" and search.max_resource is None))

    def extension_refusal(self, spec: StudySpec) -> str:
        return "all of them are in the study" if spec == spec_of("grid") else ""


def test_every_method_of_the_spec_runs_the_contract() -> None:
    """Every method of the spec's union is in SEARCHES; ``recorded`` runs in the contract's test of reruns."""
    from hpo_core.search.registry import BY_NAME

    assert set(BY_NAME) - {"recorded"} == {search["method"] for search in SEARCHES.values()}
