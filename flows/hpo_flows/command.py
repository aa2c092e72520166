"""The ``hpo`` command: the core's commands, and those that run studies.

Prefect and Dask are imported by the commands that train, and by no other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from hpo_core.cli.app import CORE_COMMANDS, new_app, run
from hpo_core.home import Home, checked_name
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import did_you_mean
from hpo_core.replay.audit import damage_named
from hpo_core.terminal.output import AsJson, Force, HomeOption, JournalOption, Name, UsePrefect, err, out
from hpo_core.terminal.without_terminal import outlive_terminal
from hpo_flows.early_interrupt import end_at_interrupt


def tune(
    study_file: Annotated[Path, typer.Argument(help="The study's YAML file.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name than the file gives.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Local workers instead of the file's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: another setting of the file, as packing.policy=worst_fit; repeatable."),
    ] = None,
    prefect: UsePrefect = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a new study to its end."""
    end_at_interrupt()
    from hpo_core.spec import StudySpec, load_spec
    from hpo_flows.study_run.launch import launch

    spec = load_spec(study_file, settings or ())
    changes: dict[str, Any] = {}
    if name is not None:
        changes["study"] = name
    if workers is not None:
        changes["cluster"] = {"kind": "local", "workers": workers}
    if changes:
        spec = StudySpec.from_plain(spec.plain() | changes, "command line")
    if spec.objective is None:
        raise SpecError(f"{study_file}: objective: is required to run a study; write package.module:function.")
    launch(Home(home, journal), spec.study, as_json, spec=spec, file=str(study_file), prefect=prefect)


def resume(
    name: Name,
    force: Force = False,
    prefect: UsePrefect = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a study that was interrupted, halted, or whose controller died."""
    end_at_interrupt()
    from hpo_flows.study_run.launch import launch

    launch(Home(home, journal), name, as_json, force=force, prefect=prefect)


def extend(
    name: Name,
    configs: Annotated[int, typer.Option("--configs", min=1, max=1_000_000_000, help="How many configurations more.")],
    force: Force = False,
    prefect: UsePrefect = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Ask a study, finished or not, for more configurations."""
    end_at_interrupt()
    from hpo_flows.study_run.launch import launch

    launch(Home(home, journal), name, as_json, force=force, extend=configs, prefect=prefect)


def rerun(
    name: Name,
    new: Annotated[str, typer.Option("--as", help="Name of the new study.", callback=checked_name)],
    trials: Annotated[
        list[int] | None,
        typer.Option("--trial", min=0, help="Only this trial and its ancestors; repeatable."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: a parameter set in every trial, as data=new.npz.")
    ] = None,
    prefect: UsePrefect = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """Train again along a study's recorded jobs: same parameters, seeds and promotions."""
    from hpo_core.replay.rerun import rerun_spec
    from hpo_core.spec.study_file import split_change

    settings = {".".join(keys): value for keys, value in map(split_change, changes or ())}
    place = Home(home, journal)
    source = place.read_journal()
    with damage_named(source, name):
        spec = rerun_spec(list(source.entries(name)), new, trials=trials or (), changes=settings)
    source.close()
    known = [*spec.space, *spec.constants]
    for added in (one for one in settings if one not in known):
        words = f"--set {added} is no parameter of the space and no constant: every trial gets it beside them"
        err.print(Text("; ".join(filter(None, (words, did_you_mean(added, known)))), style="yellow"), soft_wrap=True)
    end_at_interrupt()
    from hpo_flows.study_run.launch import launch

    launch(place, new, as_json, spec=spec, prefect=prefect)


def deploy(
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A prefect.yaml, whose deployments alone are registered; default: this package's."),
    ] = None,
) -> None:
    """Register the deployments with the Prefect server of PREFECT_API_URL."""
    out.print("registering deployments, which may take half a minute ...")
    from hpo_flows.deployed.register import POOL, deploy

    address, deployments = deploy(file)
    out.print(f"registered with work pool {POOL!r}:")
    width = max(map(len, deployments), default=0)
    for name, description in deployments.items():
        out.print(f"  {name:<{width}}  {description}", soft_wrap=True)
    out.print(f"Prefect UI: {address}", soft_wrap=True)
    out.print("next: `hpo worker` runs what is started there", soft_wrap=True)


def worker() -> None:
    """Run what is started from the Prefect UI, until interrupted (HPO_ALLOWED_OBJECTIVES says what it may)."""
    from hpo_flows.deployed.register import start_worker

    start_worker()


def ui(home: HomeOption = None, journal: JournalOption = None) -> None:
    """Serve Prefect's UI and MLflow on 127.0.0.1 and list a home's reports, until Ctrl-C; studies use that Prefect."""
    from hpo_flows.serve_home import serve_home

    outlive_terminal("it goes on to serve")
    serve_home(Home(home, journal), lambda line: out.print(Text(line), soft_wrap=True))


app = new_app(
    {
        "tune": tune,
        "resume": resume,
        "extend": extend,
        "rerun": rerun,
        **CORE_COMMANDS,
        "ui": ui,
        "deploy": deploy,
        "worker": worker,
    }
)


if __name__ == "__main__":
    run(app)
