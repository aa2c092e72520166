"""The report of one study: all figures and tables in one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from hpo_core.model.events import Entry
from hpo_core.report.hopping.hop_lanes import hop_figure
from hpo_core.report.hopping.hop_tables import hop_tables
from hpo_core.report.html_page import Live, card, html_page, write_page
from hpo_core.report.jobs.device_lanes import device_figures, device_table
from hpo_core.report.jobs.grid_map import grid_figures
from hpo_core.report.jobs.pool_slots import pool_slots
from hpo_core.report.population.family_tree import lineage_tree
from hpo_core.report.population.population_fitness import population_fitness
from hpo_core.report.population.schedule_figure import schedules
from hpo_core.report.study.bracket_tables import brackets, course
from hpo_core.report.study.contour_figure import contour
from hpo_core.report.study.distribution_figure import distribution
from hpo_core.report.study.front_figure import front_figure, front_table
from hpo_core.report.study.importance import importance_bars, importances
from hpo_core.report.study.job_timeline import jobs_over_time
from hpo_core.report.study.ladder import ladder_figure
from hpo_core.report.study.learning_curves import incumbent, learning_curves
from hpo_core.report.study.parameter_panels import parameter_panels
from hpo_core.report.study.parameters import parallel_coordinates
from hpo_core.report.study.series import Series, read_series
from hpo_core.report.study.tables import best_parameters, failures, head, top_trials
from hpo_core.report.study.trials_by_rung import rung_counts
from hpo_core.report.style import Figure
from hpo_core.report.trials.embedded_trials import embedded_trials
from hpo_core.report.trials.trials_card import trials_card

NO_LINKS: Mapping[str, str] = MappingProxyType({})


def write_report(
    entries: Iterable[Entry], path: Path, *, links: Mapping[str, str] = NO_LINKS, folder: Path | None = None
) -> Path:
    """Write a study's report to ``path`` and return it.

    Args:
        entries: the study's journal from its first entry on, read once; a prefix gives the report as of then.
        path: an ``.html`` file; folders above it are made. It is replaced as a whole or left as it was.
        links: name -> address, shown in the head (MLflow run, checkpoint).
        folder: of the study, for the ends of its logs; None shows none.

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
        StorageError: the file cannot be written.
    """
    return write_page(render(read_series(entries), links, folder=folder), path)


def figures(series: Series) -> list[Figure]:
    """All figures that this study has something to show in, in reading order."""
    drawn = [
        front_figure(series),
        incumbent(series),
        *(_of_rungs(series) if series.lineage is None else _of_pbt(series)),
    ]
    found = [figure for figure in drawn if figure is not None]
    for figure in found:
        if figure.zoom:
            _make_room(figure)
    return found


def _of_rungs(series: Series) -> list[Figure | None]:
    found = importances(series)
    return [
        *grid_figures(series),
        learning_curves(series),
        ladder_figure(series),
        rung_counts(series),
        *device_figures(series),
        hop_figure(series),
        pool_slots(series),
        jobs_over_time(series),
        importance_bars(found) if found else None,
        parameter_panels(series, found) if found else None,
        contour(series, found) if found else None,
        parallel_coordinates(series, list(found.shares) if found else []),
        distribution(series),
    ]


def _of_pbt(series: Series) -> list[Figure | None]:
    """Parameters are compared in the first generation alone: later ones were chosen and changed, not drawn."""
    found = importances(series)
    drawn = found is not None and found.resource == series.levels[0]
    return [
        population_fitness(series),
        schedules(series),
        lineage_tree(series),
        *device_figures(series),
        hop_figure(series),
        pool_slots(series),
        jobs_over_time(series),
        importance_bars(found) if found is not None and drawn else None,
        distribution(series),
    ]


def _make_room(figure: Figure) -> None:
    """Plotly's buttons belong above the legend, not on it; how many rows the legend takes is estimated."""
    names = [trace.get("name", "") for trace in figure.data if trace.get("showlegend", True)]
    rows = 1 + sum(7 * len(name) + 52 for name in names) // 1050
    room = 14 + 20 * rows + figure.layout["height"] // 100  # the legend stands 1 % above the plot
    figure.layout["margin"]["t"] += room
    figure.layout["height"] += room - 14


def render(
    series: Series,
    links: Mapping[str, str] = NO_LINKS,
    *,
    folder: Path | None = None,
    live: Live | None = None,
    whole: bool = True,
) -> str:
    """The page as text; ``live`` and ``whole`` are those of :func:`html_page`."""
    drawn = figures(series)
    beside = ("rungs", "population")
    cards = "".join(card(figure) for figure in drawn if figure.key not in beside)
    first = best_parameters(series) + "".join(card(figure) for figure in drawn if figure.key in beside)
    if not drawn:
        empty = '<h2>Nothing to draw yet</h2><p class="caption">No job was granted.</p>'
        cards = f'<section class="card">{empty}</section>'
    return html_page(
        f"{series.study.name} – report",
        f"{head(series, links)}"
        f'<div class="{"pair" if len(series.study.spec.space) < 12 else "pair long"}">{first}</div>'
        f"{brackets(series)}{course(series)}{cards}"
        f"{device_table(series)}{hop_tables(series)}{front_table(series)}{top_trials(series)}{failures(series)}"
        f"{trials_card(series)}",
        drawn,
        f"A projection of the journal up to entry {series.study.seq - 1}; write it again at any time.",
        trials=embedded_trials(series, folder),
        live=live,
        whole=whole,
    )
