"""``hpo history``: what jobs needed, listed, exported, imported, forgotten."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from hpo_core.cli.output import AsJson, HomeOption, JournalOption, out, print_json, print_rows
from hpo_core.home import Home
from hpo_core.journal.measurements import Measurements
from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import HpoError, SpecError, StorageError
from hpo_core.model.short_text import meant_or_known
from hpo_core.security.untrusted_text import json_text, terminal_text
from hpo_core.views.device_use import (
    MeasuredNeed,
    measured_needs,
)
from hpo_core.views.formatting import duration

_DAY = 86_400.0


Action = Literal["list", "export", "import", "forget"]
"""What is done with the history."""
FileFormat = Literal["json", "csv"]
"""Format of an exported file."""


def _completed(column: str, context: typer.Context, incomplete: str) -> list[str]:
    """Values that complete what was typed, for a shell; empty where there is no journal to look into."""
    home = Home(context.params.get("home"), context.params.get("journal"))
    try:
        names = {getattr(one, column) for one in home.read_journal().measurements.all()}
    except Exception:  # a shell that asks for a completion shows no error
        return []
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


def _objectives(context: typer.Context, incomplete: str) -> list[str]:
    return _completed("objective", context, incomplete)


def _architectures(context: typer.Context, incomplete: str) -> list[str]:
    return _completed("architecture", context, incomplete)


def history(
    action: Annotated[Action, typer.Argument(help="What to do.")] = "list",
    file: Annotated[
        Path | None,
        typer.Argument(help="With export: file to write (default: standard output); with import: file to read."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help="Only this module:function.", autocompletion=_objectives)
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture", help="Only this architecture, such as A100 or CPU.", autocompletion=_architectures
        ),
    ] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Only what was measured more than this many days ago.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="With forget: all measurements.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With forget: do not ask.")] = False,
    file_format: Annotated[
        FileFormat | None, typer.Option("--format", help="With export; default: by the file's name, or JSON.")
    ] = None,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """List, export, import or forget what jobs needed, by their deciding parameters."""
    _refuse(action, file, everything=everything, yes=yes, file_format=file_format)
    place = Home(home, journal)
    if action == "import":
        assert file is not None
        _import(place, file)
        return
    kept = place.read_journal().measurements
    found = _chosen(kept.all(), objective, architecture, older_than)
    if action == "list":
        _list(found, as_json)
    elif action == "export":
        _export(found, file, file_format)
    else:
        has_filter = any(one is not None for one in (objective, architecture, older_than))
        if has_filter == everything:
            raise SpecError(
                "hpo history forget: say what, with --objective, --architecture or --older-than, or everything with "
                "--all, not both."
            )
        _forget(kept, None if everything else found, len(found), yes=yes)


def _refuse(action: Action, file: Path | None, *, everything: bool, yes: bool, file_format: FileFormat | None) -> None:
    """Refuse what does not go together, before anything is read."""
    if file is not None and action not in ("export", "import"):
        raise SpecError(f"hpo history {action}: takes no file ({file}); export and import do.")
    if file is None and action == "import":
        raise SpecError("hpo history import: name the file, as `hpo history export FILE` wrote it.")
    if (everything or yes) and action != "forget":
        raise SpecError(f"hpo history {action}: --all and --yes belong to forget; leave them out.")
    if file_format is not None and action != "export":
        raise SpecError(f"hpo history {action}: --format belongs to export; leave it out.")


def _chosen(
    found: Sequence[Measurement], objective: str | None, architecture: str | None, older_than: float | None
) -> list[Measurement]:
    """Measurements that the options select.

    Raises:
        HpoError: there is none of this objective or architecture.
    """
    for option, value, column in (
        ("objective", objective, "objective"),
        ("architecture", architecture, "architecture"),
    ):
        known = sorted({getattr(one, column) for one in found})
        if value is not None and value not in known:
            hint = meant_or_known(value, known)
            raise HpoError(f"hpo history: nothing was measured with {option} {value!r}; {hint}")
    before = float("inf") if older_than is None else time.time() - older_than * _DAY
    return [
        one
        for one in found
        if objective in (None, one.objective) and architecture in (None, one.architecture) and one.measured_at <= before
    ]


def _list(found: Sequence[Measurement], as_json: bool) -> None:
    needs = measured_needs(found)
    if as_json:
        print_json(msgspec.to_builtins(needs))
        return
    if not needs:
        out.say("Nothing here. Studies with `packing` measure what their jobs need, and keep it here.")
    now = time.time()
    sources: dict[tuple[str, str], list[MeasuredNeed]] = {}
    for need in needs:
        sources.setdefault((need.objective, need.code), []).append(need)
    for number, ((objective, code), rows) in enumerate(sources.items()):
        if number:
            out.print()
        out.say(f"{objective} (source {code[:8]})", style="bold")
        print_rows(out, [_row(need, now) for need in rows])


def _age(at: float, now: float) -> str:
    return " ".join(duration(max(now - at, 0.0)).split()[:2])


def _row(need: MeasuredNeed, now: float) -> dict[str, Any]:
    memory = "" if need.memory is None else memory_words(need.memory)
    if need.out_of_memory is not None and need.out_of_memory > (need.memory or 0):
        memory = f"> {memory_words(need.out_of_memory)}"
    is_measured = need.measurements > 0
    return {
        "key": " ".join(f"{name}={value}" for name, value in need.params.items()) or "any",
        "device": need.architecture,
        "memory": memory,
        "compute": "" if need.compute is None else f"{100 * need.compute:.0f} %",
        "cores": f"{need.cores:.2f}" if is_measured else "",
        "s/unit": f"{need.unit_seconds:.3g}" if is_measured else "",
        "runs": need.measurements,
        "study": need.study,
        "age": _age(need.measured_at, now),
    }


def _export(found: Sequence[Measurement], file: Path | None, file_format: FileFormat | None) -> None:
    from hpo_core.journal.measurements import format_of, written

    by_name = None if file is None else format_of(file)
    chosen = by_name if file_format is None else file_format
    if file is not None and (chosen is None or by_name not in (None, chosen)):
        raise SpecError(f"hpo history export {file}: let the name end with .json or .csv, and agree with --format.")
    text = written(found, chosen or "json")
    if file is None:
        sys.stdout.write(json_text(text) if chosen != "csv" else terminal_text(text, lines=True))
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror or error}. Choose another file.") from error
    out.say(f"{file}: {len(found)} measurements")


def _import(place: Home, file: Path) -> None:
    from hpo_core.journal.measurements import read_file

    found = read_file(file, now=time.time())
    with closing(place.open_journal()) as journal:
        new = journal.measurements.add(found)
    out.say(f"{file}: {new} of {len(found)} measurements are new; the newest of each key are kept")


def _forget(kept: Measurements, found: Sequence[Measurement] | None, count: int, *, yes: bool) -> None:
    what = "1 measurement" if count == 1 else f"{count} measurements"
    if not count and found is not None:
        out.say("Nothing to forget.")
        return
    if not yes and not typer.confirm(f"Forget {what}? Studies will profile such jobs again."):
        out.say("Nothing was forgotten.")
        return
    forgotten = kept.forget(found)
    out.say(f"{forgotten} forgotten")
