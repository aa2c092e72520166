"""Audit: decide everything again and compare with the record.

Three tools, three words: *replay* applies recorded events and rebuilds a state; *audit* re-decides from the
recorded stimuli and reports every difference; *rerun* trains again along the recorded jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from hpo_core.journal.protocol import Journal, damaged_entry, error_words
from hpo_core.model.errors import HpoError, JournalError
from hpo_core.model.events import ConfigurationEnqueued, Entry, Event, SamplerExhausted, TrialCreated
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Params
from hpo_core.samplers.sampler import Sampler
from hpo_core.spec.assembly import create_sampler, is_pure
from hpo_core.study import Study


class Finding(msgspec.Struct, frozen=True):
    """A recorded decision that the rules do not give."""

    seq: int
    recorded: tuple[Event, ...]
    decided: tuple[Event, ...]

    def __str__(self) -> str:
        return f"entry {self.seq}: recorded {_short(self.recorded)}, the rules give {_short(self.decided)}"


class AuditReport(msgspec.Struct, frozen=True):
    entries: int
    findings: tuple[Finding, ...]
    sampler_checked: bool
    """True if parameters were drawn again too (true for samplers that are pure functions of the seed)."""

    @property
    def clean(self) -> bool:
        return not self.findings


class _Oracle:
    """Answers with the parameters the record holds; asked by number, so order does not matter."""

    def __init__(self) -> None:
        self.upcoming: dict[int, Params | None] = {}

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        return self.upcoming.pop(number, {})

    def apply(self, event: Event) -> None:
        """The record knows already."""


def audit(entries: Iterable[Entry], *, check_invariants: bool = True, limit: int = 20) -> AuditReport:
    """Re-decide every entry from the state before it.

    Args:
        entries: all entries of a study from 0 on.
        check_invariants: also assert the invariants of state and method after the last entry.
        limit: stop after so many findings.
    """
    study: Study | None = None
    oracle = _Oracle()
    findings: list[Finding] = []
    pure = False
    count = 0
    following = 0
    for entry in entries:
        if entry.seq != following:
            raise JournalError(
                f"Entry {entry.seq} stands where {following} belongs; restore the journal from a backup."
            )
        following += 1
        if study is None:
            study = Study.from_entries([entry], sampler=oracle)
            pure = is_pure(study.spec)
            drawn_again = create_sampler(study.spec) if pure else None
            count = 1
            created = tuple(study.decide(entry.stimulus))
            if created != entry.events and repr(created) != repr(entry.events):
                findings.append(Finding(entry.seq, entry.events, created))
            continue
        differs = False
        decided: list[Event] = []
        try:
            queue = list(study.state.queue)
            for event in entry.events:
                if type(event) is ConfigurationEnqueued:
                    queue.append(event.params)
                if type(event) is TrialCreated:
                    given = queue.pop(0) if event.queued and queue else None
                    drawn = event.params if drawn_again is None else _drawn(study, drawn_again, event.trial, given)
                    same = drawn is not None and _close(drawn, event.params)
                    oracle.upcoming[event.trial] = event.params if same else drawn
                elif type(event) is SamplerExhausted and not pure:
                    oracle.upcoming[event.trials] = None
                if drawn_again is not None:
                    drawn_again.apply(event)
            # The generator must see each of its events applied. A scratch copy would cost O(study) per entry;
            # instead the recorded event is applied where it equals the decided one, which is the same thing.
            recorded = iter(entry.events)
            study.rules.count_time(entry.stimulus, entry.time)
            for event in study.decide(entry.stimulus):
                decided.append(event)
                fact = next(recorded, None)
                if fact is None or not (event == fact or repr(event) == repr(fact)):
                    differs = True
                    if fact is not None:
                        study.parts.apply(fact)
                    break
                study.parts.apply(fact)
            for fact in recorded:
                differs = True
                study.parts.apply(fact)
        except HpoError:
            raise
        except Exception as error:
            if differs:
                findings.append(Finding(entry.seq, entry.events, tuple(decided)))
            if findings:  # after a decision that the rules do not give, what is recorded need not fit any more
                break
            raise damaged_entry(study.name, entry.seq, error) from error
        study.seq += 1
        count += 1
        if differs:
            findings.append(Finding(entry.seq, entry.events, tuple(decided)))
            if len(findings) >= limit:
                break
    if study is not None and check_invariants and not findings:
        try:
            study.state.check()
            study.method.check()
        except AssertionError as error:
            raise damaged_entry(study.name, count - 1, error) from error
    return AuditReport(count, tuple(findings), pure)


def _drawn(study: Study, sampler: Sampler, number: int, given: Params | None) -> Params | None:
    if given is None:
        return sampler.propose(number)
    return sampler.propose(number, given_values(study.spec.search_space(), given, f"trial {number}"))


def _close(drawn: Params, recorded: Params) -> bool:
    return drawn.keys() == recorded.keys() and all(
        math.isclose(value, recorded[name], rel_tol=1e-12)
        if isinstance(value, float) and isinstance(recorded[name], float)
        else value == recorded[name]
        for name, value in drawn.items()
    )


def _short(events: tuple[Event, ...]) -> str:
    return "[" + "; ".join(repr(event) for event in events) + "]"


@contextmanager
def damage_named(journal: Journal, study: str) -> Iterator[None]:
    """Name a damaged journal where it is what made reading fail.

    The journal is audited to find out; where it is clean the error is a defect of ours, and is raised as it is.

    Raises:
        JournalError: the journal is damaged.
    """
    try:
        yield
    except HpoError:
        raise
    except Exception as error:
        report = audit(journal.entries(study), limit=1)
        if report.clean:
            raise
        finding = report.findings[0]
        raise JournalError(
            f"Study {study!r}: its journal is damaged ({error_words(error)}); the first entry that the rules do not "
            f"give is {finding.seq} (`hpo audit {study}` shows it). Restore the journal from a backup."
        ) from error
