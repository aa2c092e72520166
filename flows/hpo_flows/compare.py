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
from hpo_core.report.series import Series, read_series
from hpo_core.security.masking import mask_logs
from hpo_core.security.untrusted_text import markdown_code, markdown_text
from hpo_flows.deployed.form import FormPart, form_flow
from hpo_flows.deployed.permissions import home_here
from hpo_flows.prefect_pages.artifacts import artifact_key, markdown_table
from hpo_flows.prefect_pages.tune_flow import step


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
    found = put_side_by_side([read_study(place.read_journal(), name) for name in studies])
    return Completed(message=found.words, data=write_page(place, found))


class StudySeries:
    """A study's series, as a task hands it on: Prefect looks for results of tasks in all that it can take apart."""

    def __init__(self, series: Series) -> None:
        self.series = series


class Compared:
    """Studies side by side, and what that comes to."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.facts = comparison.facts()
        self.specs = [series.study.spec for series in comparison.studies]
        first = self.facts["groups"][0]
        best = "no search has a result" if first["median"] is None else f"best: {first['group']}, {first['median']:.5g}"
        self.words = f"{len(self.specs)} studies by {self.facts['metric']}; {best}"


@step("read study {name}")
def read_study(journal: Journal, name: str) -> tuple[StudySeries, str]:
    """Replay a study from the journal."""
    with closing(journal):
        series = read_series(journal.entries(name))
    jobs = f"{series.study.state.completed_jobs:,} jobs"
    best = "no result" if series.best is None else f"best {series.study.spec.metric.name} = {series.best:.6g}"
    return StudySeries(series), f"{best}, {jobs}, {series.study.status}"


@step("put side by side")
def put_side_by_side(studies: list[StudySeries]) -> tuple[Compared, str]:
    """Group repeats of one search, and rank the searches."""
    found = Compared(Comparison.of_series([one.series for one in studies]))
    return found, found.words


@step("write the page")
def write_page(place: Home, found: Compared) -> tuple[dict[str, Any], str]:
    """Write the page with figures and tables, and the artifact of the run."""
    page = write_comparison(found.comparison, place.comparison_path([spec.study for spec in found.specs]))
    facts = found.facts
    metric = facts["metric"]
    first = facts["groups"][0]
    count = len(facts["studies"])
    lines = [f"## {count} {'study' if count == 1 else 'studies'} by {markdown_text(metric)} ({facts['mode']})", ""]
    if first["median"] is not None:
        seeds = f" (median of {first['studies']} seeds)" if first["studies"] > 1 else ""
        lines.append(
            f"Best: **{markdown_text(first['group'])}**, {markdown_text(metric)} = {first['median']:.5g}{seeds}."
        )
    lines += ["", *markdown_table(*facts_table(facts["groups"]))]
    lines += ["", f"- Page: {markdown_code(page.as_uri())}"]
    key = artifact_key("-".join(row["study"] for row in facts["studies"])[:80], "compared")
    create_markdown_artifact("\n".join(lines), key=key, description="Studies side by side")
    return facts | {"page": str(page), "links": {"Page": page.as_uri()}}, str(page)
