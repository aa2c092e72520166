"""The command that a person would type next about a study."""

from __future__ import annotations

from hpo_core.study import Study


def next_command(study: Study) -> str:
    """``hpo resume``, ``hpo show``, or ``hpo extend`` by a population or as many configurations as it has trials.

    A finished study is extended where it takes more configurations. One that runs, or takes no more, is shown.
    """
    if study.status == "finished":
        if study.refuse_extension() is not None:
            return f"hpo show {study.name}"
        more = study.spec.search.outline().population or max(1, len(study.state.trials))
        return f"hpo extend {study.name} --configs {more}"
    running = study.status == "open" and study.state.running
    return f"hpo show {study.name}" if running else f"hpo resume {study.name}"
