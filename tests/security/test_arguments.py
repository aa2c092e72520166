"""Names of others on command lines: a value that looks like an option is a value."""

from __future__ import annotations

import pytest

from hpo_core.home import Home
from hpo_core.model.errors import SpecError
from hpo_core.tracking.mlflow_client import open_client
from tests.conftest import make_spec
from tests.flows.conftest import Runner


@pytest.mark.parametrize("experiment", ["", "a\x00b", "a\x1b[2J", "a\nb"])
def test_experiment_names_with_control_characters_are_refused(experiment: str) -> None:
    with pytest.raises(SpecError, match="experiment"):
        make_spec(tracking={"experiment": experiment})


@pytest.mark.slow
def test_an_experiment_called_help_gets_its_runs(hpo: Runner) -> None:
    search = {"method": "random", "configs": 2, "max_resource": 1}
    file = hpo.study(tracking={"experiment": "--help"}, search=search)
    hpo("tune", file)
    client = open_client(Home(hpo.home).default_tracking_uri)
    experiment = client.get_experiment_by_name("--help")
    kinds = [run.data.tags["hpo.kind"] for run in client.search_runs([experiment.experiment_id])]
    assert sorted(kinds) == ["study", "trial", "trial"]
    log = (hpo.home / "studies" / "toy" / "mlflow.log").read_text()
    assert "usage:" not in log
