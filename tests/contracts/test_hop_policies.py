"""The contract for every hop policy."""

from __future__ import annotations

import pytest

from hpo_core.hopper.registry import POLICIES
from tests.contract_suites.hop_policy_contract import HopPolicyContract, MakePolicy


class TestHopPolicies(HopPolicyContract):
    @pytest.fixture(params=sorted(POLICIES.keys() - {"exact"}))
    def make_policy(self, request: pytest.FixtureRequest) -> MakePolicy:
        return POLICIES[request.param]


class TestExact(HopPolicyContract):
    seeds = 6

    @pytest.fixture
    def make_policy(self) -> MakePolicy:
        pytest.importorskip("scipy", reason="SciPy comes with the extra 'samplers'")
        return POLICIES["exact"]
