"""The flow that puts studies side by side: reading each study is a task, and so is what is made of them."""

from contextlib import closing
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.report.comparison import Comparison, facts_table, write_comparison
from hpo_core.security.masking import mask_logs
from hpo_core.security.untrusted_text import markdown_code, markdown_text
from hpo_core.views.series import Series, read_series
from hpo_flows.deployed.form import FormPart, form_flow
from hpo_flows.deployed.permissions import home_here
from hpo_flows.prefect_pages.artifacts import artifact_key, markdown_table
from hpo_flows.prefect_pages.tune_flow import Found, step


def _run_name() -> str:
    studies = flow_run.parameters["studies"]
    return f"compare-{'-'.join(studies)}"[:120]


class CompareForm(FormPart):
    studies: list[str] = Field(min_length=1, description="Names of the studies; they must optimize one metric.")


@form_flow("compare", _run_name)
def compare(form: CompareForm) -> State[dict[str, Any]]:
    """Put studies side by side: incumbents over training and time, final quality, cost.

    Repeats of one search over several seeds (equal settings, names equal up to a number or date at their end) share
    a band.
    """
    studies = form.studies
    mask_logs()
    place = home_here()
    facts = put_side_by_side(place, [read_study(place.read_journal(), name) for name in studies])
    return Completed(message=facts["words"], data=facts)


class StudySeries:
    """A study's series, as a task hands it on: Prefect looks for results of tasks in all that it can take apart."""

    def __init__(self, series: Series) -> None:
        self.series = series


@step("read study {name}")
def read_study(journal: Journal, name: str) -> Found[StudySeries]:
    """Replay a study from the journal."""
    with closing(journal):
        series = read_series(journal.entries(name))
    jobs = f"{series.study.state.completed_jobs:,} jobs"
    best = "no result" if series.best is None else f"best {series.study.spec.metric.name} = {series.best:.6g}"
    return Found(StudySeries(series), f"{best}, {jobs}, {series.study.status}")


@step("put side by side")
def put_side_by_side(place: Home, studies: list[StudySeries]) -> Found[dict[str, Any]]:
    """Group repeats of one search, rank the searches; write the page with figures, and the artifact of the run."""
    comparison = Comparison.of_series([one.series for one in studies])
    facts = comparison.facts()
    metric, first, names = facts["metric"], facts["groups"][0], [one.series.study.name for one in studies]
    count = f"{len(names)} {'study' if len(names) == 1 else 'studies'}"
    page = write_comparison(comparison, place.comparison_path(names))
    best = "no search has a result" if first["median"] is None else f"best: {first['group']}, {first['median']:.5g}"
    lines = [f"## {count} by {markdown_text(metric)} ({facts['mode']})", "", markdown_text(best), ""]
    lines += [*markdown_table(*facts_table(facts["groups"])), "", f"- Page: {markdown_code(page.as_uri())}"]
    key = artifact_key("-".join(names)[:80], "compared")
    create_markdown_artifact("\n".join(lines), key=key, description="Studies side by side")
    words = f"{count} by {metric}; {best}"
    return Found(facts | {"words": words, "page": str(page), "links": {"Page": page.as_uri()}}, words)
