"""The report of a study with every type of parameter, groups, dependent ranges and constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core import MemoryJournal
from hpo_core.report import write_report
from tests.conftest import World, fresh, make_spec
from tests.spec.test_space_types import FORBIDDEN, NET


@pytest.mark.parametrize("method", ["random", pytest.param("pbt", marks=pytest.mark.slow)])
def test_a_report_shows_every_type_of_parameter(method: str, tmp_path: Path) -> None:
    journal = MemoryJournal()
    search = {
        "random": {"method": "random", "configs": 40, "max_resource": 3},
        "pbt": {"method": "pbt", "population": 24, "generations": 2},
    }[method]
    given = {"start_with": [{"x": 0.25}], "constants": {"optimizer.beta": 0.9, "layers": [1, 2]}}
    study = fresh(make_spec(study="all", space=NET, forbidden=FORBIDDEN, search=search, **given), journal)
    World(1).play(study)
    page = write_report(list(journal.entries("all")), tmp_path / "report.html").read_text()
    assert all(name in page for name in study.spec.space)
    assert "optimizer.beta (constant)" in page and "[1, 2]" in page and "[5, 5]" in page
