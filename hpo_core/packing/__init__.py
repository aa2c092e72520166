"""Packing: several jobs at once on a device, by what they need. Here: ``hpo history``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, Any

import typer

from hpo_core.home import Home
from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.devices.measurement import Measurement
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.short_text import meant_or_known
from hpo_core.terminal.output import AsJson, HomeOption, JournalOption, out, print_json, print_rows
from hpo_core.views.formatting import duration


def history(
    objective: Annotated[str | None, typer.Argument(help="Only this module:function.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Forget it: studies measure such jobs again.")] = False,
    home: HomeOption = None,
    journal: JournalOption = None,
    as_json: AsJson = False,
) -> None:
    """List the memory, compute and cores that jobs were measured to need."""
    if forget and objective is None:
        raise SpecError("hpo history --forget: name the OBJECTIVE, module:function, whose measurements are forgotten.")
    kept = Home(home, journal).read_journal().measurements
    every = kept.all()
    found = [one for one in every if objective in (None, one.objective)]
    if objective is not None and not found:
        hint = meant_or_known(objective, sorted({one.objective for one in every}))
        raise HpoError(f"hpo history: nothing was measured of {objective!r}; {hint}")
    if forget:
        forgotten = Home(home, journal).open_journal().measurements.forget(found)
        print_json({"forgotten": forgotten}) if as_json else out.say(f"{forgotten} forgotten")
        return
    needs = sorted(_needs(found), key=lambda need: (need["objective"], need["code"], -(need["memory"] or 0)))
    if as_json:
        print_json(needs)
        return
    if not needs:
        out.say("Nothing here. Studies with `packing` measure what their jobs need, and keep it here.")
    for (name, source), group in groupby(needs, lambda need: (need["objective"], need["code"])):
        out.say(f"{name} (source {source[:8]})", style="bold")
        print_rows(out, [_need_row(need) for need in group])


def _needs(found: Iterable[Measurement]) -> Iterator[dict[str, Any]]:
    """The largest need of each objective, source, architecture and key, and its latest measurement."""
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for one in found:
        groups.setdefault((one.objective, one.code, one.architecture, one.key), []).append(one)
    for group in groups.values():
        newest = max(group, key=lambda one: one.measured_at)
        yield {name: getattr(newest, name) for name in ("objective", "code", "architecture", "params", "study")} | {
            "memory": max(one.peak for one in group) or None,
            "out_of_memory": max(one.out_of_memory for one in group) or None,
            "compute": max((one.compute for one in group if one.compute is not None), default=None),
            "cores": max(one.cores for one in group),
            "unit_seconds": max(one.unit_seconds for one in group),
            "measurements": sum(not one.out_of_memory for one in group),
            "measured_at": newest.measured_at,
        }


def _need_row(need: dict[str, Any]) -> dict[str, Any]:
    memory = "" if need["memory"] is None else memory_words(need["memory"])
    if (need["out_of_memory"] or 0) > (need["memory"] or 0):
        memory = f"> {memory_words(need['out_of_memory'])}"
    return {
        "key": " ".join(f"{name}={value}" for name, value in need["params"].items()) or "any",
        "device": need["architecture"],
        "memory": memory,
        "compute": "" if need["compute"] is None else f"{100 * need['compute']:.0f} %",
        "cores": f"{need['cores']:.2f}",
        "s/unit": f"{need['unit_seconds']:.3g}",
        "runs": need["measurements"],
        "study": need["study"],
        "age": " ".join(duration(max(time.time() - need["measured_at"], 0.0)).split()[:2]),
    }
