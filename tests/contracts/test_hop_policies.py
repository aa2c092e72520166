"""The contract for every hop policy."""

from __future__ import annotations

import pytest

from hpo_core.hopper.hop_policies import POLICIES
from tests.contract_suites.hop_policy_contract import HopPolicyContract, MakePolicy


class TestHopPolicies(HopPolicyContract):
    @pytest.fixture(params=sorted(POLICIES))
    def make_policy(self, request: pytest.FixtureRequest) -> MakePolicy:
        return POLICIES[request.param]
