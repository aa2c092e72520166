"""The command that a person would type next about a study."""

from __future__ import annotations

import re

from hpo_core.study import Study
from hpo_core.views.failure_reasons import no_result_words

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>[1-9]\d{0,5})")


def next_command(study: Study, file: str = "STUDY.yaml") -> str:
    """The command that helps: ``hpo resume``, ``hpo show``, ``hpo extend``, ``hpo try`` or ``hpo tune``.

    A finished study is extended by a population, or by as many configurations as it has trials, where it takes more.
    One that runs, or takes no more, is shown. One of which no trial has a finite value is tried, for its trials end
    alike in a resume. One whose checkpoints do not fit into their limit is started anew, for a resume cannot raise it.

    Args:
        file: the study's file, where it is known.
    """
    if no_result_words(study):
        return f"hpo try {file}"
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
    """What follows :func:`next_command` where that shows what went wrong and mends nothing; else empty."""
    return new_study_command(study, file) if no_result_words(study) else ""


def new_study_command(study: Study, file: str = "STUDY.yaml") -> str:
    """``hpo tune`` of the study's file under another name: a study keeps its settings, and its name is taken."""
    change = f" --set {study.room_needed}" if study.room_needed else ""
    return f"hpo tune {file} --name {another_name(study.name)}{change}"


def another_name(name: str) -> str:
    """A name for a study that is started anew.

    >>> another_name("digits"), another_name("digits-2")
    ('digits-2', 'digits-3')
    """
    found = _NUMBERED.fullmatch(name)
    return f"{name}-2" if found is None else f"{found['stem']}-{int(found['number']) + 1}"


def cure_words(study: Study, file: str = "STUDY.yaml") -> str:
    """What to do about a study that halted or came to nothing, in one sentence."""
    command = next_command(study, file)
    if again := command_after(study, file):
        return f"`{command}` shows what a trial reports; mend that and start the study anew: `{again}`."
    return f"`{command}` goes on." if command.startswith("hpo resume") else f"Type `{command}`."
