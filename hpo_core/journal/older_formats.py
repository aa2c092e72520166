"""Entries of older formats, made what this version would have written. One function for each step.

A journal may hold several formats: a study that an older version began goes on in the present one.

- 1 to 2: the spec of an ``asha`` study names its bracket, which was the only one.
- 2 to 3: the jobs of an entry carry a stage instead of bracket and rung, capacity is an inventory instead of a number.
  One entry does not tell a population from a ladder of rungs, so each stage becomes a rung here;
  ``StudyState.present_shape`` knows the study, and makes a generation of it.
"""

from __future__ import annotations

from typing import Any

from hpo_core.model.stage import FURTHER

Plain = dict[str, Any]


def upcast(entry: Plain) -> Plain:
    """An older entry as plain data in the present shape; ``format`` still says how it was written."""
    if int(entry["format"]) < 2:
        entry = _to_format_2(entry)
    return _to_format_3(entry)


def _to_format_2(entry: Plain) -> Plain:
    return _with_specs(entry, _spec_of_format_1)


def _with_specs(entry: Plain, change: Any) -> Plain:
    stimulus = entry["stimulus"]
    if stimulus.get("is") != "StudyRequested":
        return entry
    events = [
        event | {"spec": change(event["spec"])} if event.get("is") == "StudyCreated" else event
        for event in entry["events"]
    ]
    return entry | {"stimulus": stimulus | {"spec": change(stimulus["spec"])}, "events": events}


def _spec_of_format_1(spec: Plain) -> Plain:
    search = spec.get("search", {})
    return spec | {"search": search | {"brackets": [0]}} if search.get("method") == "asha" else spec


def _to_format_3(entry: Plain) -> Plain:
    return entry | {
        "stimulus": _fact_of_format_2(entry["stimulus"]),
        "events": [_fact_of_format_2(event) for event in entry["events"]],
    }


def _fact_of_format_2(fact: Plain) -> Plain:
    kind = fact.get("is")
    if kind in ("JobGranted", "JobCompleted", "AttemptFailed") and "stage" not in fact:
        rest = {name: value for name, value in fact.items() if name not in ("bracket", "rung")}
        return rest | {"stage": _stage(fact.get("bracket", 0), fact["rung"])}
    if kind in ("CapacityNoticed", "CapacityChanged") and "inventory" not in fact:
        slots = fact["slots"]
        return {"is": kind, "inventory": {"devices": [{"name": "", "slots": slots}] if slots else []}}
    return fact


def _stage(bracket: int, rung: int) -> Plain:
    if rung == FURTHER:
        return {"is": "Further", "bracket": bracket}
    return {"is": "Rung", "bracket": bracket, "rung": rung}
