"""Contract test suites: what every journal, search method, sampler, executor and projection must do. Needs pytest."""

import pytest

pytest.register_assert_rewrite(
    "hpo_core.testing.executor_contract",
    "hpo_core.testing.journal_contract",
    "hpo_core.testing.projection_contract",
    "hpo_core.testing.sampler_contract",
    "hpo_core.testing.search_method_contract",
)
