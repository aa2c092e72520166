"""Links that lose packets, are slow, or are cut in one direction."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.hosts.conftest import MakeLab
from tests.hosts.studies import Cluster, FarStudy

pytestmark = pytest.mark.slow
SHORT = {"method": "asha", "configs": 8, "min_resource": 2, "max_resource": 18, "reduction_factor": 3}


@pytest.mark.parametrize(
    "link",
    [{"delay": "100ms", "loss": 0.05}, {"delay": "10ms", "rate": "10mbit"}],
    ids=["200 ms and 5 % lost", "10 Mbit/s"],
)
def test_bad_links_of_all_hosts_lose_no_attempt(make_lab: MakeLab, shared: Path, link: dict[str, float]) -> None:
    """200 ms there and back. Checkpoints of 100 MB go to the shared folder, reports and code over the link."""
    lab = make_lab(4)
    results = []
    for name, quality in (("calm", {}), ("bad", link)):
        cluster = Cluster(lab, shared / name, scheduler="h1", workers="h3 h4")
        for host in lab if quality else []:
            host.link(**quality)
        study = FarStudy(shared / name, cluster, search=SHORT, seconds=0.2, megabytes=25)
        began = time.monotonic()
        study.end(study.tune("h2"))
        print(f"{name}: {time.monotonic() - began:.0f} s")
        study.whole(lost=0)
        results.append(study.results())
        cluster.stop()
    shared_results = results[0].keys() & results[1].keys()
    assert len(shared_results) >= 8
    assert {key: results[0][key] for key in shared_results} == {key: results[1][key] for key in shared_results}
