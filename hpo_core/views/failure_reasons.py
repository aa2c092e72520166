"""Why trials failed, grouped by kind of error and message."""

from __future__ import annotations

import re

import msgspec

from hpo_core.checkpoints.storage import log_path
from hpo_core.model.trial import Outcome
from hpo_core.spec.sent_functions import digest_of
from hpo_core.state import StudyState, TrialRecord
from hpo_core.study import Study
from hpo_core.views.formatting import plural

GROUPS_SHOWN = 5
"""A summary names so many groups; the last line counts the rest."""
MESSAGE_SHOWN = 160
"""Characters of a message in a summary; ``hpo show NAME --trial T`` has it in full."""
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*): (?P<message>.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_RANK = re.compile(r"Rank (\d{1,4}) of \d+: ")
VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""Numbers in a message: messages that differ in them alone are alike."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Trials that were given up for one reason."""

    outcome: str
    """End of their last attempts (``error``, ``out_of_memory``, ...)."""
    error: str
    """Type of the exception; empty where the training function raised none."""
    message: str
    """Message of the first of these trials in one line; those of the others may differ in numbers."""
    trials: tuple[int, ...]
    attempt: int
    """Last attempt of the first of these trials."""
    log: str
    """Path of that attempt's output, relative to the study's folder."""

    @property
    def reason(self) -> str:
        """Exception and message, or what became of the process, in one line."""
        if self.outcome == Outcome.ERROR:
            return ": ".join(filter(None, (self.error, self.message)))
        return f"{self.outcome.replace('_', ' ')}: {': '.join(filter(None, (self.error, self.message)))}"


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of a study's trials."""

    trials: int
    """All trials of the study."""
    failed: int
    """Trials that were given up because their attempts failed; without those that a person abandoned."""
    diverged: int
    """Trials whose latest result is not finite."""
    groups: tuple[FailureGroup, ...]
    """Reasons, the most frequent first."""

    @property
    def counts(self) -> str:
        """Number of trials, and of those that failed or diverged."""
        counts = [f"{self.failed:,} failed"] if self.failed else []
        counts += [f"{self.diverged:,} diverged (NaN or infinite)"] if self.diverged else []
        return f"of {plural(self.trials, 'trial')}, {' and '.join(counts)}"

    @property
    def most_failed(self) -> bool:
        """True if more than half of the trials failed or diverged."""
        return 2 * (self.failed + self.diverged) > self.trials


def failures_of(state: StudyState) -> Failures:
    """The failed trials of a study by reason; O(trials)."""
    found: dict[tuple[str, str, str], list[tuple[TrialRecord, str]]] = {}
    failed = diverged = 0
    for trial in state.trials:
        if trial.abandoned is not None and trial.failures and trial.failures[-1].outcome is not Outcome.PREEMPTED:
            last = trial.failures[-1]
            failed += 1
            error, message = _split(last.message)
            key = (last.outcome.value, error, VARYING.sub("#", message))
            found.setdefault(key, []).append((trial, message))
        elif trial.results and trial.loss is None:
            diverged += 1
    groups = [
        FailureGroup(
            outcome=outcome,
            error=error,
            message=members[0][1],
            trials=tuple(trial.number for trial, _ in members),
            attempt=members[0][0].failures[-1].attempt,
            log=log_path(
                members[0][0].number, members[0][0].failures[-1].attempt, rank_named(members[0][0].failures[-1].message)
            ),
        )
        for (outcome, error, _), members in found.items()
    ]
    groups.sort(key=lambda group: (-len(group.trials), group.trials))
    return Failures(trials=len(state.trials), failed=failed, diverged=diverged, groups=tuple(groups))


def no_result_words(study: Study) -> str:
    """Why nothing came of a study that is over or halted; empty where something did, or may in a resume.

    A halt before so many trials have ended as the rules about failures ask for has another cause, such as a full disk.
    """
    state, training = study.state, study.spec.training
    if state.finite_results or not state.trials or study.status == "open":
        return ""
    ended = sum(trial.has_ended for trial in state.trials)
    if study.status == "halted" and (training.fail_fast is None or ended < training.fail_fast):
        return ""
    found = failures_of(state)
    often = f", most often with: {found.groups[0].reason}" if found.groups else ""
    names = " and ".join(metric.name for metric in study.spec.objectives)
    return f"no trial has a finite value of {names}: {found.counts}{often}"


def failed_words(study: Study, cure: str) -> str:
    """Why a study that has ended failed, and what to do; empty where it did what was asked.

    A study that a rule of its own ended has done that; one that gave up, or has no result, has not.

    Args:
        cure: what to do, as a sentence.
    """
    halted = None if study.finished else study.state.halted
    if halted is not None and not halted.rule:
        return f"{halted.reason.rstrip('.')}. {cure}"
    if nothing := no_result_words(study):
        return f"Study {study.name!r} ended without a single result: {nothing}. {cure}"
    return ""


def rank_named(message: str) -> int:
    """The rank of a gang whose end a message tells, and whose log says more; 0 where it names none.

    >>> rank_named("Rank 2 of 4: ValueError: bad"), rank_named("ValueError: bad")
    (2, 0)
    """
    found = _RANK.match(message)
    return 0 if found is None else int(found[1])


def failure_lines(failures: Failures, folder: str = "", said: str = "") -> list[str]:
    """The failures as lines for people, the first a count; empty where nothing failed.

    Args:
        folder: put in front of the paths of logs.
        said: what stands above them, so that a message in it is not repeated.
    """
    if not failures.failed and not failures.diverged:
        return []
    lines = [failures.counts]
    for group in failures.groups[:GROUPS_SHOWN]:
        log = f"{folder.rstrip('/')}/{group.log}" if folder else group.log
        reason = group.reason if len(group.reason) <= MESSAGE_SHOWN else f"{group.reason[:MESSAGE_SHOWN]}..."
        if group.message and group.message in said:
            reason = f"{group.error or group.outcome} as above"
        example = f"{'such as ' * (len(group.trials) > 1)}trial {group.trials[0]}"
        lines.append(f"{len(group.trials):,} x {reason} ({example}, log {log})")
    if more := failures.groups[GROUPS_SHOWN:]:
        lines.append(f"and {plural(len(more), 'other reason')} of {sum(len(g.trials) for g in more):,} more")
    return lines


def _split(text: str) -> tuple[str, str]:
    # Type and message of an exception as attempts report them (`ValueError: bad`); no type where it has none.
    line = text.partition("\n")[0]
    found = _EXCEPTION.fullmatch(line)
    if found is not None:
        return found["type"], found["message"]
    return (line, "") if _NAME.fullmatch(line) else ("", line)


_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>[1-9]\d{0,5})")


def next_command(study: Study, file: str = "STUDY.yaml") -> str:
    """The command that helps: ``hpo resume``, ``hpo show``, ``hpo extend``, ``hpo try`` or ``hpo tune``.

    A finished study is extended by a population, or by as many configurations as it has trials, where it takes more.
    One that runs, or takes no more, is shown. One of which no trial has a finite value is tried, for its trials end
    alike in a resume; it is shown where its function was sent by value, for then no file describes it. One whose
    checkpoints do not fit into their limit is started anew, for a resume cannot raise it.

    Args:
        file: the study's file, where it is known.
    """
    if no_result_words(study):
        return f"hpo show {study.name}" if _is_from_python(study) else f"hpo try {file}"
    if study.status == "finished":
        if study.refuse_extension() is not None:
            return f"hpo show {study.name}"
        more = study.spec.search.outline().population or max(1, len(study.state.trials))
        return f"hpo extend {study.name} --configs {more}"
    if study.room_needed:
        return new_study_command(study, file)
    running = study.status == "open" and study.state.running
    return f"hpo show {study.name}" if running else f"hpo resume {study.name}"


def command_after(study: Study, file: str = "STUDY.yaml") -> str:
    """Command after :func:`next_command` where that shows what went wrong and mends nothing; else empty."""
    return new_study_command(study, file) if no_result_words(study) else ""


def new_study_command(study: Study, file: str = "STUDY.yaml") -> str:
    """``hpo tune`` of the study's file under another name: a study keeps its settings, and its name is taken.

    Where its function was sent by value, it is the call from Python.
    """
    if _is_from_python(study):
        return new_study_call(study)
    change = f" --set {study.room_needed}" if study.room_needed else ""
    return f"hpo tune {file} --name {another_name(study.name)}{change}"


def new_study_call(study: Study) -> str:
    """``hpo.tune`` under another name, with a larger limit of checkpoints where that is what it needs.

    ``hpo.tune(..., name='digits-2', checkpoints=hpo.Checkpoints(max_count=3))``.
    """
    setting, _, least = study.room_needed.rpartition(".")[2].partition("=")
    change = f", checkpoints=hpo.Checkpoints({setting}={least})" if setting else ""
    return f"hpo.tune(..., name={another_name(study.name)!r}{change})"


def _is_from_python(study: Study) -> bool:
    return digest_of(study.spec.objective) is not None


def another_name(name: str) -> str:
    """A name for a study that is started anew.

    >>> another_name("digits"), another_name("digits-2")
    ('digits-2', 'digits-3')
    """
    found = _NUMBERED.fullmatch(name)
    return f"{name}-2" if found is None else f"{found['stem']}-{int(found['number']) + 1}"


def cure_words(study: Study, file: str = "STUDY.yaml") -> str:
    """Cure of a study that halted or came to nothing, in one sentence."""
    command = next_command(study, file)
    if again := command_after(study, file):
        return f"`{command}` shows what a trial reports; mend that and start the study anew: `{again}`."
    return f"`{command}` goes on." if command.startswith("hpo resume") else f"Type `{command}`."


def cure_in_python(study: Study, home: str = "") -> str:
    """Cure of a study that halted or came to nothing, in one sentence for those who called ``hpo.tune``.

    Args:
        home: folder of its home, where that is not the default.
    """
    arguments = f"{study.name!r}, home={home!r}" if home else f"{study.name!r}"
    if no_result_words(study):
        return (
            f"hpo.load({arguments}).jobs says how each attempt ended; mend the training function and start anew: "
            f"{new_study_call(study)}."
        )
    if study.room_needed:
        return f"A resume would halt again, for a study keeps its limits. Start anew: {new_study_call(study)}."
    return f"hpo.resume({arguments}), or the call with resume=True, goes on."
