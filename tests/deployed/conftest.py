"""The services of tests/flows, for deployed flows."""

from tests.flows.conftest import hpo, make_hpo

__all__ = ["hpo", "make_hpo"]
