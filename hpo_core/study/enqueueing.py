"""Configurations that a person puts into the queue of a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo_core.model.errors import HpoError
from hpo_core.model.space import same_scalar
from hpo_core.model.space.nested_names import flattened
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Params
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState


def checked_configuration(spec: StudySpec, params: Mapping[str, Any]) -> Params:
    """Values as the study's space takes them.

    Raises:
        HpoError: the study takes no configurations (a rerun), or the space does not take these values.
    """
    if spec.search.record() is not None:
        raise HpoError(
            f"Study {spec.study!r} trains again along a record, so nothing can be enqueued. Enqueue it in the study "
            "it repeats, or start a new one with start_with."
        )
    try:
        return given_values(spec.search_space(), flattened(params), "enqueue")
    except ValueError as error:
        raise HpoError(f"Study {spec.study!r}: {error}.") from None


def is_known(state: StudyState, given: Params) -> bool:
    """Whether a trial, or a configuration in the queue, has these values already."""
    known = [*(trial.params for trial in state.trials), *state.queue]
    return any(all(name in one and same_scalar(one[name], given[name]) for name in given) for one in known)
