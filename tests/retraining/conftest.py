"""The services of tests/flows, for retrained models."""

from tests.flows.conftest import empty_store, hpo, make_hpo, prefect_api

__all__ = ["empty_store", "hpo", "make_hpo", "prefect_api"]
