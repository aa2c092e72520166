"""The command ``hpo simulate``; what it does is imported when it is called."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo_core.home import Home
from hpo_core.terminal.output import AsJson, HomeOption, JournalOption


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question to ``hpo simulate``: a field for each of its options."""

    study_file: Annotated[
        Path | None, typer.Argument(help="The study's YAML file; default: the description in --from-journal.")
    ] = None
    workers: Annotated[
        list[int] | None, typer.Option("--workers", help="Number of workers; repeatable, to compare.")
    ] = None
    repeat: Annotated[int, typer.Option("--repeat", help="Repeats, each with its own seed.")] = 25
    from_journal: Annotated[
        str | None, typer.Option("--from-journal", help="Learning curves and durations of this past study.")
    ] = None
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Another search method; repeatable, to compare.")
    ] = None
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, as search.reduction_factor=3; the same key again: values to compare."),
    ] = None
    target: Annotated[float | None, typer.Option("--target", help="Value of the metric that is good enough.")] = None
    stragglers: Annotated[
        float, typer.Option("--stragglers", help="Durations times 1 + |z|, z normal with this standard deviation.")
    ] = 0.0
    drops: Annotated[
        float, typer.Option("--drops", help="Chance that a job is dropped and granted again, per time of one unit.")
    ] = 0.0
    seconds_per_unit: Annotated[
        float | None, typer.Option("--seconds-per-unit", help="Seconds of one unit of training.")
    ] = None


def simulate_study(
    *,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Estimate what a study would take, on virtual workers; nothing is trained."""
    from hpo_core.simulation.scenarios import simulate

    simulate(Question(**options), Home(home, journal), as_json=as_json)


*_own, _options = signature(simulate_study, eval_str=True).parameters.values()
simulate_study.__signature__ = Signature(  # type: ignore[attr-defined]
    [*signature(Question, eval_str=True).parameters.values(), *_own]
)
