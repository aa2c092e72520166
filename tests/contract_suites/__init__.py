"""Contract test suites: what every journal, search method, sampler and executor must do. Needs pytest."""

import pytest

pytest.register_assert_rewrite(
    "tests.contract_suites.executor_contract",
    "tests.contract_suites.journal_contract",
    "tests.contract_suites.sampler_contract",
    "tests.contract_suites.search_method_contract",
)
