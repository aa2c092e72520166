"""The flow that puts studies side by side."""

from pathlib import Path
from typing import Any

from prefect import get_run_logger, tags
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import deployment, flow_run
from pydantic import Field

from hpo_core.home import Home
from hpo_core.journal.protocol import Journal
from hpo_core.report.comparison import Comparison, write_comparison
from hpo_core.security.masking import mask_logs
from hpo_core.security.untrusted_text import markdown_code, markdown_text
from hpo_core.spec import StudySpec
from hpo_core.tracking.comparison_run import Tracked, log_comparison
from hpo_core.tracking.mlflow_client import prepare_environment
from hpo_core.tracking.tracker_links import reason_of
from hpo_flows.deployed.flow_run import form_flow
from hpo_flows.deployed.form_schema import FormPart
from hpo_flows.deployed.permissions import Permissions, home_here
from hpo_flows.prefect_pages.artifacts import artifact_key


def _run_name() -> str:
    studies = flow_run.parameters["studies"]
    return f"compare-{'-'.join(studies)}"[:120]


class CompareForm(FormPart):
    studies: list[str] = Field(min_length=1, description="Names of the studies; they must optimize one metric.")


@form_flow("compare", _run_name)
def compare(form: CompareForm) -> dict[str, Any]:
    """Put studies side by side: incumbents over training and time, final quality, cost.

    Repeats of one search over several seeds (equal settings, names equal up to a number or date at their end) share
    a band.
    """
    studies = form.studies
    mask_logs()
    place = home_here()
    source = place.read_journal()
    comparison = Comparison.of(source.entries(name) for name in studies)
    page = write_comparison(comparison, place.comparison_path(studies))
    facts = comparison.facts()
    specs = {series.study.name: series.study.spec for series in comparison.studies}
    tracked = [_tracked(place, source, specs[name]) for name in studies]
    links = {"Page": page.as_uri()} | _track(facts, page, tracked)
    with tags("hpo", *studies):
        _show(facts, links)
    get_run_logger().info("compared %s: %s", ", ".join(studies), page)
    return facts | {"page": str(page), "links": links}


def _tracked(home: Home, journal: Journal, spec: StudySpec) -> Tracked:
    if deployment.id is not None:
        Permissions.of_environment().check_tracking(spec)
    return Tracked(
        study=spec.study,
        created=journal.info(spec.study).created,
        tracking_uri=home.tracking_uri(spec),
        experiment=spec.tracking.experiment,
        artifact_location=home.artifact_location(spec),
    )


def _track(facts: dict[str, Any], page: Path, studies: list[Tracked]) -> dict[str, str]:
    """MLflow is a copy for other eyes: where it cannot be reached, the comparison is there all the same."""
    prepare_environment()
    try:
        links, missing = log_comparison(facts, page, studies)
    except Exception as error:
        get_run_logger().warning("The comparison is not in MLflow (%s); its page is.", reason_of(error))
        return {}
    for study, reason in missing.items():
        get_run_logger().warning("%s is not on MLflow's own comparison page: %s", study, reason)
    return links


def _show(facts: dict[str, Any], links: dict[str, str]) -> None:
    metric = facts["metric"]
    first = facts["groups"][0]
    count = len(facts["studies"])
    lines = [f"## {count} {'study' if count == 1 else 'studies'} by {markdown_text(metric)} ({facts['mode']})", ""]
    if first["median"] is not None:
        seeds = f" (median of {first['studies']} seeds)" if first["studies"] > 1 else ""
        lines.append(
            f"Best: **{markdown_text(first['group'])}**, {markdown_text(metric)} = {first['median']:.5g}{seeds}."
        )
    lines += ["", f"| search | seeds | {markdown_text(metric)} | least – most | training | worker time | utilization |"]
    lines.append(f"|{' --- |' * 7}")
    for row in facts["groups"]:
        cells = [markdown_text(row["group"]), row["studies"], _words(row["median"])]
        cells += [f"{_words(row['least'])} – {_words(row['most'])}"]
        share = "–" if row["utilization"] is None else f"{100 * row['utilization']:.0f}%"
        cells += [f"{row['resource']:,.0f}", f"{row['worker_seconds']:.1f} s", share]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", *(f"- {title}: {markdown_code(target)}" for title, target in links.items())]
    key = artifact_key("-".join(row["study"] for row in facts["studies"])[:80], "compared")
    create_markdown_artifact("\n".join(lines), key=key, description="Studies side by side")
    rows = [{name: value for name, value in row.items() if name != "params"} for row in facts["studies"]]
    create_table_artifact(rows, key=f"{key}-studies", description="Each study")
    for title, target in links.items():
        if target.startswith(("http://", "https://", "file://")):
            create_link_artifact(target, link_text=title, key=f"{key}-{title.lower().replace(' ', '-')}")


def _words(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"
