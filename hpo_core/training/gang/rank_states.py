"""What a rank of a gang has of its own in a checkpoint: random streams, samplers, buffers of modules.

Parameters of modules and states of optimizers are the same on all ranks, or the ranks trained apart; they are saved
once, by rank 0. Everything else may differ from rank to rank. A rank whose own state differs from that of rank 0 has it
saved beside, so a gang of the same size goes on to the bit. In a gang of another size rank ``k`` takes up the state of
rank ``k mod g`` of the ``g`` that saved; where all drew alike, that is what one process would take up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpo_core.checkpoints.tree_bytes import tree_bytes, tree_digest, tree_of
from hpo_core.training.optimizers import is_module, is_optimizer
from hpo_core.training.random_state import capture_all, state_of

RANKS = "ranks"
"""Key of a checkpoint below which states of ranks lie that differ from rank 0's."""


def unwrapped(item: Any) -> Any:
    """The module that a wrapper for data-parallel training holds; anything else as it is.

    So names in a checkpoint have no prefix ``module.``, and it loads in a gang of any size, and without one.
    """
    if type(item).__name__ in ("DistributedDataParallel", "DataParallel") and is_module(getattr(item, "module", None)):
        return item.module
    return item


def own_state(tracked: Mapping[str, Any]) -> bytes:
    """What this rank may have of its own, encoded.

    Raises:
        CheckpointError: a state holds a value that cannot be stored.
    """
    buffers = {name: _buffers(item) for name, item in tracked.items() if is_module(item)}
    others = {name: state_of(item) for name, item in tracked.items() if not is_module(item) and not is_optimizer(item)}
    return tree_bytes({"random": capture_all(), "buffers": buffers, "tracked": others})


def common_digests(tracked: Mapping[str, Any]) -> dict[str, str]:
    """By name of a tracked module or optimizer: digest of what must be the same on all ranks."""
    found = {}
    for name, item in tracked.items():
        if is_module(item):
            buffers = _buffer_names(item)
            found[name] = tree_digest({key: value for key, value in item.state_dict().items() if key not in buffers})
        elif is_optimizer(item):
            found[name] = tree_digest(item.state_dict())
    return found


def differing(states: Sequence[bytes]) -> list[Any] | None:
    """For a checkpoint: the state of each rank, None where it is that of rank 0; None: all are alike."""
    if all(state == states[0] for state in states):
        return None
    return [None if state == states[0] else np.frombuffer(state, np.uint8) for state in states]


def state_for(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """The content of a checkpoint as this rank takes it up."""
    parts = state.get(RANKS)
    part = None if not parts else parts[rank % len(parts)]
    if part is None:
        return state
    own = tree_of(part.tobytes())
    tracked = dict(state["tracked"]) | own["tracked"]
    for name, buffers in own["buffers"].items():
        whole = tracked[name]
        tracked[name] = type(whole)((key, buffers.get(key, value)) for key, value in whole.items())
        if hasattr(whole, "_metadata"):
            tracked[name]._metadata = whole._metadata
    return state | {"random": own["random"], "tracked": tracked}


def _buffer_names(module: Any) -> set[str]:
    return {name for name, _ in module.named_buffers(remove_duplicate=False)}


def _buffers(module: Any) -> OrderedDict[str, Any]:
    names = _buffer_names(module)
    return OrderedDict((key, value) for key, value in module.state_dict().items() if key in names)
