"""One-way copies of a study for other eyes; importing this package imports no tracker. Here: ``hpo project``."""

from __future__ import annotations

from typing import Annotated

import typer

from hpo_core.home import Home
from hpo_core.terminal.output import HomeOption, JournalOption, Name, out


def project(
    name: Name,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Make runs again that were deleted in MLflow."),
    ] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
) -> None:
    """Bring MLflow up to date with the journal; doing it twice changes nothing."""
    from hpo_core.tracking.follower import project_study

    place = Home(home, journal)
    source = place.read_journal()
    found = project_study(place, source, name, rebuild=rebuild)
    out.say(found, lines=True)
