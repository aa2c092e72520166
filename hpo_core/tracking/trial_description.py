"""A trial's way through the rungs as Markdown above its run in MLflow, and all promotions as a table. Pure."""

from __future__ import annotations

import csv
import io
from collections import Counter
from datetime import UTC, datetime

from hpo_core.model.events import JobCompleted
from hpo_core.search.search_settings import Outline
from hpo_core.security.untrusted_text import markdown_text
from hpo_core.spec import StudySpec
from hpo_core.tracking.tracked_study import Promotion, TrackedStudy
from hpo_core.views.formatting import plural
from hpo_core.views.states import trial_state

_SHARES = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}


def state_word(fold: TrackedStudy, number: int) -> str:
    return trial_state(fold.study, fold.state.trials[number])


def states(fold: TrackedStudy) -> dict[str, int]:
    """Trials by state; the winner counts as completed."""
    found = Counter(state_word(fold, number) for number in range(len(fold.trials)))
    best = found.pop("winner", 0) + found.pop("best so far", 0)
    known = dict.fromkeys(("completed", "not promoted", "stopped", "diverged", "abandoned"), 0)
    return known | found | {"completed": found["completed"] + best}


def rule_of(spec: StudySpec, among: int | None = None) -> str:
    outline = spec.search.outline()
    if outline.independent or outline.members or outline.population is not None:
        return ""
    factor = outline.reduction_factor
    share = _SHARES.get(int(factor), "") if factor == int(factor) else ""
    return f"best {share or f'1/{factor:g}'}" + ("" if among is None else f" of {among}")


def trial_description(fold: TrackedStudy, number: int) -> str:
    """Rung by rung: value, place, the rule, what it went on from; then how it ended."""
    spec, trial, notes = fold.spec, fold.state.trials[number], fold.trials[number]
    word, outline = state_word(fold, number), spec.search.outline()
    lines = [f"**Trial {number} of study {spec.study}**: {word}", ""]
    born = fold.state.reproduced.get(number)
    came = "" if trial.parent is None else f", with the weights of trial {trial.parent}"
    came += "" if born is None else f", in generation {born.generation}"
    came += ", given by a person" if trial.queued else ""
    lines.append(f"- created {at(notes.created)}{came}")
    promotions = {promotion.resource: promotion for promotion in notes.promotions}
    for result in trial.results:
        label = fold.names.label(result.bracket, result.rung)
        line = f"- {label}, after {plural(result.resource, spec.unit_word)}: {_values(spec, result)}"
        lines.append(line + _what_then(fold, result, promotions.get(result.resource), outline))
    for failure in trial.failures:
        words = markdown_text(failure.message[:300])
        lines.append(f"- attempt {failure.attempt} to {failure.target} failed: {failure.outcome} {words}".rstrip())
    if (abandoned := trial.abandoned) is not None:
        label = fold.names.label(abandoned.bracket, abandoned.rung)
        lines.append(f"- abandoned on the way to {label}: {markdown_text(abandoned.reason[:300])}")
    if notes.ended is not None and not trial.running:
        where = f" on {markdown_text(notes.worker)}" if notes.worker else ""
        lines.append(f"- ended {at(notes.ended)}{where}: **{word}**")
    return "\n".join(lines)


def _what_then(fold: TrackedStudy, result: JobCompleted, promotion: Promotion | None, outline: Outline) -> str:
    spec = fold.spec
    trial = fold.state.trials[result.trial]
    if promotion is not None:
        start = "anew" if promotion.checkpoint is None else f"from its checkpoint at {promotion.checkpoint}"
        rule = rule_of(spec, promotion.among)
        why = f"; place {promotion.rank} of {promotion.among}, among the {rule}" if rule else ""
        return f"{why}; went on {start} to {promotion.target} ({at(promotion.time)})"
    stopped = trial.stopped
    if stopped is not None and (stopped.bracket, stopped.rung) == (result.bracket, result.rung):
        return f"; place {stopped.rank} of {stopped.results}, not among the {rule_of(spec, stopped.results)}: stopped"
    if (place := fold.place_of(result)) is None:
        return ""
    is_top = outline.max_resource is not None and result.resource >= outline.max_resource
    rank, among = place
    if is_top or not rule_of(spec):
        return f"; place {rank} of {among}"
    waits = "has not gone on" if fold.study.status == "open" else "was not promoted"
    return f"; place {rank} of {among}, {waits} (rule: {rule_of(spec, among)})"


def _values(spec: StudySpec, result: JobCompleted) -> str:
    known = [(metric.name, result.metrics.get(metric.name)) for metric in spec.objectives]
    return ", ".join(
        f"{markdown_text(name)} = {value:.6g}" if value is not None else f"{markdown_text(name)} is missing"
        for name, value in known
    )


def promotions_csv(fold: TrackedStudy) -> str:
    """All promotions, one a line: time, trial, from where to where, its value and place, and the rule."""
    metric = fold.spec.metric
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["time", "trial", "bracket", "to rung", "trained", "to", metric.name, "place", "among", "rule"])
    for one in fold.promotions:
        value = "" if one.loss is None else one.loss * metric.sign
        rule = rule_of(fold.spec, one.among) or "next generation"
        when = datetime.fromtimestamp(one.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        writer.writerow(
            [when, one.trial, one.bracket, one.rung, one.resource, one.target, value, one.rank, one.among, rule]
        )
    return written.getvalue()


def at(seconds: float) -> str:
    """A time in UTC for people."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
