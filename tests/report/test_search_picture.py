"""The picture of a search, and the page around it, as Prefect's artifacts show them."""

from __future__ import annotations

from xml.etree import ElementTree

from hpo_core.report.pictures import search_picture
from hpo_core.report.style import BEST
from hpo_core.study import Study
from hpo_flows.prefect_pages.artifacts import study_markdown
from tests.conftest import make_spec


def played(**changes: object) -> Study:
    study = Study.create(make_spec(**changes))
    while (job := study.ask()) is not None:
        study.tell(job, {study.spec.metric.name: abs(job.params["x"] - 0.3) + 1 / (job.target + 1)})
    return study


def test_a_dot_for_each_result_and_the_best_one_in_orange() -> None:
    study = played()
    svg = search_picture(study)
    assert svg is not None and study.best is not None
    dots = [node.attrib for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("circle")]
    assert len(dots) == study.state.completed_jobs
    (orange,) = [dot for dot in dots if dot["fill"] == BEST]
    assert float(orange["cy"]) == max(float(dot["cy"]) for dot in dots), "the smallest value lies lowest"
    assert f"dot: trial {study.best.trial}" in svg


def test_a_page_holds_all_and_links_only_what_another_machine_can_open() -> None:
    links = {
        "MLflow": "http://mlflow:5000/#/runs/1",
        "Report": "file:///srv/a%20b/report.html",
        "Study folder": "/srv/a",
    }
    page = study_markdown(played(), "12 jobs", links)
    assert "[MLflow](<http://mlflow:5000/#/runs/1>)" in page
    assert "- Report, on the machine of the run: `/srv/a b/report.html`" in page and "file://" not in page
    assert page.count("data:image/svg+xml") == 1
    assert "\n\n12 jobs\n\n" in page
