"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from hpo_core.home import checked_name

Name = Annotated[str, typer.Argument(help="Name of the study.", callback=checked_name)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
HomeOption = Annotated[
    str | None, typer.Option("--home", help="Folder of journal, checkpoints, reports (HPO_HOME, or .hpo).")
]
JournalOption = Annotated[
    str | None, typer.Option("--journal", help="SQLAlchemy URL of the journal (HPO_JOURNAL, or SQLite in the home).")
]
UsePrefect = Annotated[
    bool | None, typer.Option("--prefect/--no-prefect", help="Show it in Prefect; default: as the study file says.")
]
PrefectTimeout = Annotated[
    float | None,
    typer.Option(
        "--prefect-timeout",
        min=1.0,
        max=86_400.0,
        help="Seconds without progress that a Prefect server may take to start, instead of the study file's.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Take over from a controller that seems alive.")]
