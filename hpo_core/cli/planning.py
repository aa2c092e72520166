"""Commands before a study: space, partition."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hpo_core.model.partition_file import PartitionFile
from hpo_core.partitioning.resolution import MANIFEST
from hpo_core.partitioning.splitting import partition_data
from hpo_core.terminal.output import AsJson, err, out, print_json
from hpo_core.views.formatting import plural


def space(objective: Annotated[str, typer.Argument(help="An Optuna objective, package.module:function.")]) -> None:
    """Print the space of an Optuna objective, found by calling it some 200 times up to its first report."""
    from hpo_core.spec.study_yaml import in_one_line
    from hpo_core.training.objective import load_objective
    from hpo_core.training.optuna_space import find_space

    found = find_space(load_objective(objective, [str(Path.cwd())]))
    sys.stdout.write(
        "space:\n" + "".join(f"  {in_one_line(name)}: {in_one_line(item)}\n" for name, item in found.space.items())
    )
    if found.constraints:
        sys.stdout.write(f"constraints: {in_one_line(found.constraints)}\n")
    if found.mode is not None:
        err.say(f"It looks at trial.study.direction and runs with `mode: {found.mode}` of the metric.")
    gaps = f" Not tried: {'; '.join(found.gaps)}." if found.gaps else ""
    err.say(f"Called {found.calls} times, but once at random.{gaps} What is suggested only elsewhere is missing.")


def partition(
    source: Annotated[
        str,
        typer.Argument(help="A .npz file, or MODULE:FUNCTION that returns arrays by name."),
    ],
    parts: Annotated[int, typer.Option("--parts", help="Number of partitions that are trained on.")],
    to: Annotated[Path, typer.Option("--to", help="Folder for the partitions; it must be empty, or not exist yet.")],
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same files.")] = 0,
    stratify: Annotated[
        str | None, typer.Option("--stratify", help="Array or column: each partition gets its share of each value.")
    ] = None,
    validation: Annotated[
        float, typer.Option("--validation", help="Share of the examples for validation, in files of their own.")
    ] = 0.0,
    validation_parts: Annotated[
        int | None, typer.Option("--validation-parts", help="Number of files for validation; default: that of --parts.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Shuffle data once and split them into partitions that models hop over, with a manifest."""
    manifest = partition_data(
        source,
        to,
        parts=parts,
        seed=seed,
        stratify=stratify,
        validation=validation,
        validation_parts=validation_parts,
        import_folders=[str(Path.cwd())],
    )
    if as_json:
        print_json(manifest.model_dump(mode="json"))
        return
    _say(manifest.partitions, "to train on")
    _say(manifest.validation, "for validation")
    out.say(f"manifest: {to / MANIFEST}")
    lines = [f"{role}: {to.name}/{MANIFEST}" for role in ("partitions", "validation") if getattr(manifest, role)]
    out.say(f"in a study file beside {to.name}: data: {{{', '.join(lines)}}}")


def _say(files: list[PartitionFile], purpose: str) -> None:
    if files:
        counts = [file.count or 0 for file in files]
        each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} or {max(counts):,}"
        size = sum(file.bytes or 0 for file in files) / 1e6
        words = f"{plural(len(files), 'partition')} {purpose}: {sum(counts):,} examples, {each} in each, {size:,.3g} MB"
        out.say(words)
