"""``hpo space``: prints the space of an Optuna objective."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hpo_core.terminal.output import err


def space(objective: Annotated[str, typer.Argument(help="An Optuna objective, package.module:function.")]) -> None:
    """Print the space of an Optuna objective, found by calling it up to its first report, 200 times or for 30 s."""
    from hpo_core.optuna.optuna_space import find_space
    from hpo_core.spec.study_yaml import in_one_line
    from hpo_core.training.objective import load_objective

    found = find_space(load_objective(objective, [str(Path.cwd())]))
    sys.stdout.write(
        "space:\n" + "".join(f"  {in_one_line(name)}: {in_one_line(item)}\n" for name, item in found.space.items())
    )
    if found.constraints:
        sys.stdout.write(f"constraints: {in_one_line(found.constraints)}\n")
    if found.mode is not None:
        err.say(f"It looks at trial.study.direction and runs with `mode: {found.mode}` of the metric.")
    err.say(found.words())
