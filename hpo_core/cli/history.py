"""``hpo history``: what jobs needed, listed and forgotten."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer

from hpo_core.home import Home
from hpo_core.journal.measurements import Measurements
from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.short_text import meant_or_known
from hpo_core.terminal.output import AsJson, HomeOption, JournalOption, out, print_json, print_rows
from hpo_core.views.device_use import MeasuredNeed, measured_needs
from hpo_core.views.formatting import duration

Action = Literal["list", "forget"]
"""What is done with the history."""


def history(
    action: Annotated[Action, typer.Argument(help="What to do.")] = "list",
    objective: Annotated[str | None, typer.Option("--objective", help="Only this module:function.")] = None,
    architecture: Annotated[
        str | None, typer.Option("--architecture", help="Only this architecture, such as A100 or CPU.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="With forget: all measurements.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With forget: do not ask.")] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """List or forget what jobs needed, by their deciding parameters."""
    if (everything or yes) and action != "forget":
        raise SpecError(f"hpo history {action}: --all and --yes belong to forget; leave them out.")
    kept = Home(home, journal).read_journal().measurements
    found = _chosen(kept.all(), objective, architecture)
    if action == "list":
        _list(found, as_json)
        return
    if (objective is not None or architecture is not None) == everything:
        raise SpecError(
            "hpo history forget: say what, with --objective or --architecture, or everything with --all, not both."
        )
    _forget(kept, None if everything else found, len(found), yes=yes)


def _chosen(found: Sequence[Measurement], objective: str | None, architecture: str | None) -> list[Measurement]:
    """Measurements that the options select.

    Raises:
        HpoError: there is none of this objective or architecture.
    """
    for column, value in (("objective", objective), ("architecture", architecture)):
        known = sorted({getattr(one, column) for one in found})
        if value is not None and value not in known:
            hint = meant_or_known(value, known)
            raise HpoError(f"hpo history: nothing was measured with {column} {value!r}; {hint}")
    return [one for one in found if objective in (None, one.objective) and architecture in (None, one.architecture)]


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
