"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from hpo_core.home import Home, checked_name, is_name


def names_of_studies(context: typer.Context, incomplete: str) -> list[str]:
    """Names that complete what was typed, for a shell; empty where there is no journal to look into."""
    home = Home(context.params.get("home"), context.params.get("journal"))
    try:
        names = [info.name for info in home.read_journal().studies()]
    except Exception:  # a shell that asks for a completion shows no error
        return []
    return [name for name in names if name.startswith(incomplete) and is_name(name)]


Name = Annotated[str, typer.Argument(help="Name of the study.", callback=checked_name, autocompletion=names_of_studies)]
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
Force = Annotated[bool, typer.Option("--force", help="Take over from a controller that seems alive.")]
