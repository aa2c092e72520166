"""Starting from another trial's checkpoint: what fits is restored, hyperparameters stay one's own (PBT 3.6.2).

``matching`` says what fits and what is a hyperparameter, ``optimizers`` what that means for them. Where both trials
have the same parameters everything that fits is the parent's, to the bit. Random streams go on where the parent's
stand, so a trial and its ancestors are one training with changing parameters, not several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import UNRESTORED_LINES, Params
from hpo_core.training.matching import UNKNOWN, Matching, skeleton
from hpo_core.training.optimizers import (
    Names,
    advance,
    copied,
    describe_optimizers,
    fit_groups,
    fit_moments,
    is_counted,
    is_module,
    is_optimizer,
    is_schedule,
    parameter_names,
)
from hpo_core.training.random_state import put_state, state_of


def describe(tracked: Mapping[str, Any], built: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """What a checkpoint says for those who start another trial from it, as a tree."""
    return {"params": params, "built": dict(built), "optimizers": describe_optimizers(tracked)}


def built_state(item: Any) -> Any:
    """How a tracked object looks before its first step; None for modules and generators, which are all state."""
    if is_module(item) or not hasattr(item, "state_dict"):
        return None
    try:
        state = item.state_dict()
        return skeleton({"param_groups": state["param_groups"]} if is_optimizer(item) else state)
    except Exception:  # some objects have no state before they were used
        return None


def is_built_late(item: Any) -> bool:
    """Optimizers and schedules: they must not change while the training function still builds on them."""
    return is_optimizer(item) or is_schedule(item)


class WarmStart:
    """One start from the checkpoint of ``parent``.

    Args:
        state: the checkpoint, as :class:`TrialHandle` wrote it.
        params: the child's parameters.
    """

    def __init__(self, state: Mapping[str, Any], params: Params, parent: int) -> None:
        self._parent = parent
        self._states: dict[str, Any] = state["tracked"]
        described = state.get("description", {})
        self._built: dict[str, Any] = described.get("built", {})
        self._optimizers: dict[str, Any] = described.get("optimizers", {})
        self._unchanged = described.get("params") == params
        self._names: frozenset[str] = frozenset() if self._unchanged else frozenset(params)

    def restore_one(self, name: str, item: Any) -> None:
        """As soon as it is tracked, for more may be built on it; see :func:`is_built_late`."""
        if name in self._states and not is_built_late(item):
            self._restore(name, item, Matching(self._names))

    def restore(self, tracked: Mapping[str, Any]) -> tuple[str, ...]:
        """Everything, once all is built; returns what was left as it was built, and why.

        Raises:
            ObjectiveError: an object refuses the state that was matched for it.
        """
        found = Matching(self._names)
        found.left += [f"{name}: not in the checkpoint" for name in tracked if name not in self._states]
        found.left += [f"{name}: not tracked here" for name in self._states if name not in tracked]
        known = {name: item for name, item in tracked.items() if name in self._states}
        for name, item in known.items():
            if not is_built_late(item):
                self._restore(name, item, found)
        names = parameter_names(tracked)
        schedules = {name: item for name, item in known.items() if is_schedule(item)}
        for name, item in known.items():
            if is_optimizer(item):
                driven = {key: schedules.pop(key) for key, s in list(schedules.items()) if s.optimizer is item}
                with self._guarded(name):
                    self._restore_optimizer(name, item, names[name], driven, found)
        for name, item in schedules.items():  # their optimizer is not tracked
            with self._guarded(name):
                if is_counted(item) and not self._unchanged:
                    advance(item, self._states[name])
                else:
                    self._restore(name, item, found)
        return thinned(found.left)

    def _restore(self, name: str, item: Any, found: Matching) -> None:
        there = self._states[name]
        if not hasattr(item, "state_dict"):
            try:
                put_state(item, there)
            except Exception as error:  # a generator of another kind, which begins a stream of its own
                found.left.append(f"{name}: {error}")
            return
        with self._guarded(name):
            if is_module(item):
                fitted = found.tensors(name, item.state_dict(), there)
            else:
                built = UNKNOWN if self._unchanged else self._built.get(name, UNKNOWN)
                fitted = found.fit(name, state_of(item), there, built, is_optimizer(getattr(item, "optimizer", None)))
            item.load_state_dict(fitted)

    def _restore_optimizer(
        self, name: str, item: Any, names: Names, schedules: Mapping[str, Any], found: Matching
    ) -> None:
        there = self._states[name]
        counted = {key: s for key, s in schedules.items() if is_counted(s) and not self._unchanged}
        built = (self._built.get(name) or {}).get("param_groups") or []
        groups = fit_groups(item, there["param_groups"], None if self._unchanged else built, counted, self._states)
        described = self._optimizers.get(name)
        state = fit_moments(name, item, names, groups, there, described, found) if described else {}
        item.load_state_dict({**item.state_dict(), "state": state, "param_groups": groups})
        for key, schedule in schedules.items():
            if key in counted:
                schedule._last_lr = [copied(group["lr"]) for group in item.param_groups]
            else:
                self._restore(key, schedule, found)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except ObjectiveError:
            raise
        except Exception as error:
            raise ObjectiveError(
                f"{name!r} refuses the state from the checkpoint of trial {self._parent} ({type(error).__name__}: "
                f"{error}). What does not match by name and shape was left out already; let its load_state_dict() "
                "accept that, or mark the parameters it depends on as static."
            ) from error


def thinned(lines: list[str]) -> tuple[str, ...]:
    """At most ``UNRESTORED_LINES``; the last one then counts the rest."""
    if len(lines) <= UNRESTORED_LINES:
        return tuple(lines)
    return (*lines[: UNRESTORED_LINES - 1], f"and {len(lines) - UNRESTORED_LINES + 1} more")
