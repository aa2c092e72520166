"""The commands that need the core only; ``hpo_flows.command`` adds those that run studies.

Exit codes: 0 done; 1 failed; 2 wrong study file or arguments; 3 study exists; 4 study not found; 5 driven by
another controller; 6 storage or journal cannot be written; 7 study halted before its end (``hpo resume`` goes
on); 8 audit found differences; 9 most trials failed; 130 interrupted.
"""

from __future__ import annotations

import inspect
import platform
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hpo_core.cli import studies
from hpo_core.cli.before_study import check, partition, space, try_trial
from hpo_core.model.errors import HpoError
from hpo_core.model.file_urls import checked_text, working_folder
from hpo_core.model.short_text import did_you_mean, shown
from hpo_core.packing import history
from hpo_core.pool import share_study
from hpo_core.report.report_commands import compare, report
from hpo_core.security.masking import mask_logs, masked
from hpo_core.simulation.scenarios import simulate_study
from hpo_core.terminal.output import err
from hpo_core.tracking import project

EXTRAS = {
    "dask": "flows",
    "distributed": "flows",
    "prefect": "flows",
    "mlflow": "mlflow",
    "pyarrow": "mlflow",
    "torch": "torch",
    "pynvml": "gpu",
    "scipy": "retraining",
    "cmaes": "samplers",
}
"""Extra by importable name; ``pyproject.toml`` has the packages of each."""


def missing_package(error: BaseException) -> str:
    """Missing package and how to install it; empty unless the cause is a module that an extra installs."""
    cause = error
    while cause.__cause__ is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    name = (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
    if name not in EXTRAS:
        return ""
    return (
        f"this command needs the package {name!r}, which is not installed. Install it with "
        f"`pip install 'hpo-core[{EXTRAS[name]}]'`, or everything with `pip install 'hpo-core[all]'`."
    )


CORE_COMMANDS: dict[str, Callable[..., None]] = {
    "simulate": simulate_study,
    "space": space,
    "try": try_trial,
    "check": check,
    "list": studies.list_studies,
    "status": studies.status,
    "show": studies.show,
    "audit": studies.audit_study,
    "abandon": studies.abandon,
    "enqueue": studies.enqueue,
    "share": share_study,
    "export": studies.export,
    "schedule": studies.schedule,
    "report": report,
    "compare": compare,
    "project": project,
    "import": studies.import_study,
    "history": history,
    "partition": partition,
}
"""Commands by name."""


GROUPS = {
    "Before a study": ("space", "try", "check", "partition", "simulate"),
    "Run studies": ("tune", "resume", "extend", "rerun", "enqueue", "abandon", "share"),
    "Look at studies": ("list", "status", "show", "report", "compare", "schedule", "export", "audit", "history"),
    "Other systems": ("project", "import", "ui", "deploy", "worker"),
}
"""Groups of ``hpo --help``; a command that is in none comes last."""


class _Command(TyperCommand):
    """A command whose errors quote a wrong value, and name the choice that was probably meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer has a click of its own, or that which is installed
            said: Any = error
            if " is not one of " in (message := getattr(said, "message", "")):
                typed, *known = re.findall(r"'([^']*)'", message)
                said.message = "; ".join(filter(None, (message.rstrip("."), did_you_mean(typed, known))))
            else:
                for one in getattr(error.__cause__, "errors", list)():  # of pydantic, whose words lack the value
                    said.message = f"{message} (got {shown(one['input'])})"
            raise


class _Commands(TyperGroup):
    """The commands; the help lists them in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        left = list(self.commands)
        for title, names in (*GROUPS.items(), ("Others", left)):
            rows = [(name, self.commands[name].get_short_help_str(10_000)) for name in names if name in left]
            left = [name for name in left if name not in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hpo {version('hpo-core')} (Python {platform.python_version()})")
        raise typer.Exit


def new_app(commands: Mapping[str, Callable[..., None]]) -> typer.Typer:
    """A command line with these commands, by name."""
    app = typer.Typer(
        name="hpo",
        cls=_Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options_of_all)
    for name, command in commands.items():
        # in full: the summary that typer makes of a long sentence ends with "..."
        app.command(name, cls=_Command, short_help=(inspect.getdoc(command) or "").partition("\n\n")[0])(command)
    return app


def _options_of_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tune hyperparameters with Prefect, Dask and MLflow; every decision is journaled."""


app = new_app(CORE_COMMANDS)


def run(app: typer.Typer) -> None:
    """Run a command: errors of ours are one clear message and an exit code, never a traceback; none shows a secret."""
    mask_logs()
    try:
        working_folder()
        for argument in sys.argv[1:]:
            checked_text(argument, "Argument", "Rename the file or folder, or name another.")
        app()
    except HpoError as error:
        err.say(f"error: {masked(str(error))}", style="red", lines=True)
        if cure := missing_package(error):
            err.say(cure, style="red")
        sys.exit(error.exit_code)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (cure := missing_package(error)):
            err.say(f"error: {cure}", style="red")
        else:
            err.say(masked("".join(traceback.format_exception(error))), lines=True)
        sys.exit(1)
