"""The state of a training that a checkpoint saves: random generators, tracked objects, plain values in a ``State``.

Every global random generator that a training function may use is seeded, captured and restored. One of a library that
is imported later is seeded by its import; TensorFlow's has no state that could be saved.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any

import numpy as np

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.short_text import some


def seed_all(seed: int) -> None:
    """Seed python, numpy, torch on CPU and every CUDA device, and TensorFlow: the last two now or when imported."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    for name, seed_library in _SEEDS.items():
        if (library := sys.modules.get(name)) is not None:
            seed_library(library, seed)
    _imports.seed = seed
    if _imports not in sys.meta_path:
        sys.meta_path.insert(0, _imports)


def _seed_torch(torch: Any, seed: int) -> None:
    if torch.backends.cuda.is_built():
        torch.manual_seed(seed)  # the CUDA devices too, once they are initialized
    else:
        torch.default_generator.manual_seed(seed)  # the other formats the stack for each absent device


_SEEDS: dict[str, Callable[[Any, int], object]] = {
    "torch": _seed_torch,
    "tensorflow": lambda tensorflow, seed: tensorflow.random.set_seed(seed),
}
"""Functions that seed a library which may be imported while a training function runs, by its name."""


_AFTER_IMPORT: dict[str, list[Callable[[], object]]] = {}


def when_imported(name: str, call: Callable[[], object]) -> None:
    _AFTER_IMPORT.setdefault(name, []).append(call)


class _SeededImports(MetaPathFinder):
    """Has a library seeded at the end of its first import; how it is found is left to the other finders."""

    seed = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in sys.modules or not (name in _SEEDS or name in _AFTER_IMPORT):
            return None
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        spec = next((found for one in others if (found := one.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_seed(module: Any) -> None:
                del loader.exec_module
                execute(module)
                if name in _SEEDS:
                    _SEEDS[name](module, self.seed)
                for call in _AFTER_IMPORT.pop(name, ()):
                    call()

            loader.exec_module = execute_and_seed
        return spec


_imports = _SeededImports()


def capture_all() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_all(states: dict[str, Any]) -> None:
    """Restore what :func:`capture_all` gave; CUDA states of devices that this machine lacks are ignored."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        devices = torch.cuda.device_count() if "cuda" in states else 0
        if devices:
            # without it, torch would apply the pending seed on the first use of CUDA and overwrite the state
            torch.cuda.init()  # type: ignore[no-untyped-call]
        for device, state in enumerate(states.get("cuda", ())[:devices]):
            torch.cuda.set_rng_state(state, device)


def state_of(item: Any) -> Any:
    """State of a tracked object or generator; :func:`put_state` loads it."""
    if hasattr(item, "state_dict"):
        return item.state_dict()
    if isinstance(item, random.Random):
        return item.getstate()
    if isinstance(item, np.random.Generator):
        return item.bit_generator.state
    if isinstance(item, np.random.RandomState):
        return item.get_state(legacy=False)
    return item.get_state()


def put_state(item: Any, state: Any) -> None:
    if hasattr(item, "load_state_dict"):
        item.load_state_dict(state)
    elif isinstance(item, random.Random):
        item.setstate(state)
    elif isinstance(item, np.random.Generator):
        item.bit_generator.state = state
    else:
        item.set_state(state)


def is_torch(value: Any, kind: str) -> bool:
    found: Any = sys.modules.get("torch")
    for part in kind.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(value, found)


def is_module(value: Any) -> bool:
    return is_torch(value, "nn.Module")


def unwrapped(item: Any) -> Any:
    """The module that a wrapper for data-parallel training holds; anything else as it is.

    So names in a checkpoint have no prefix ``module.``, and it loads in a gang of any size, and without one.
    """
    if type(item).__name__ in ("DistributedDataParallel", "DataParallel") and is_torch(
        getattr(item, "module", None), "nn.Module"
    ):
        return item.module
    return item


def is_generator(value: Any) -> bool:
    numpy_or_python = isinstance(value, random.Random | np.random.Generator | np.random.RandomState)
    return numpy_or_python or is_torch(value, "Generator")


def can_track(item: Any) -> bool:
    has_state = callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None))
    return has_state or is_generator(item)


_DEPTH = 20


class State:
    """Plain values that a training loop carries from step to step.

    ::

        state = hpo_core.State(best=1e9, patience=0)
        trial.track(model=model, state=state)
        for epoch in trial.steps():
            loss = train_one_epoch(model)
            state.patience = 0 if loss < state.best else state.patience + 1
            state.best = min(state.best, loss)

    A value is None, a bool, int, float or str, or a list, tuple or dict (with texts as keys) of such. Values go into
    the checkpoint as they are: nothing is executed when they are loaded.

    Raises:
        ObjectiveError: another value, or a name that begins with an underscore.
    """

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("state_dict", "load_state_dict"):
            raise ObjectiveError(f"State(...) has no room for the name {name!r}; use one without a leading underscore.")
        vars(self)[name] = plain_value(value, f"State.{name}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"This State has no value {name!r}; it has {some(vars(self)) or 'none'}.")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, State) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def state_dict(self) -> dict[str, Any]:
        """A copy of the values.

        Raises:
            ObjectiveError: a list or dict got a value that is not plain meanwhile.
        """
        return {name: plain_value(value, f"State.{name}") for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over these values; others that this State has stay."""
        for name, value in state.items():
            setattr(self, name, value)


def plain_value(value: Any, place: str, depth: int = 0) -> Any:
    """A copy of a plain value; numpy's numbers become Python's.

    Raises:
        ObjectiveError: something in it is not plain.
    """
    if value is None or type(value) in (bool, int, str, float):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return value.item()
    if depth < _DEPTH and type(value) in (list, tuple):
        return type(value)(plain_value(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value))
    if depth < _DEPTH and type(value) is dict and all(type(key) is str for key in value):
        return {key: plain_value(item, f"{place}[{key!r}]", depth + 1) for key, item in value.items()}
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    cure = "track the object itself if it has state_dict(), or turn it into one of these"
    if hasattr(value, "item"):
        cure = "use its number: value.item()"
    elif depth >= _DEPTH:
        kind, cure = f"{kind} below {_DEPTH} others", "use fewer levels"
    elif type(value) is dict:
        kind, cure = "dict whose keys are not all texts", "use texts as keys"
    raise ObjectiveError(
        f"{place} got a {kind}; a State holds None, bool, int, float, str, and lists, tuples and dicts of them: {cure}."
    )


class LoopWatch:
    """Looks at the local variables of a training function, and at attributes of its ``self``.

    Args:
        frame: of the training function, when its loop begins.
        tracked: the tracked objects, by name.
    """

    def __init__(self, frame: FrameType, tracked: Mapping[str, Any]) -> None:
        modules = [part for item in tracked.values() if is_module(item) for part in item.modules()]
        tensors = [tensor for item in tracked.values() if is_module(item) for tensor in _tensors(item)]
        self._saved = {*map(id, tracked.values()), *map(id, modules), *map(id, tensors)} | _global_generators()
        self._frame: FrameType | None = frame
        self._before = {name: (value, _fingerprint(value)) for name, value in self._untracked()}

    def warnings(self) -> tuple[str, ...]:
        """One line for each variable that changed since the loop began; call it once, at the loop's end."""
        found = {
            id(value): f"{name} ({type(value).__module__.partition('.')[0]} {type(value).__qualname__}) changes in the "
            f"loop and is not tracked: trial.track({name.rpartition('.')[2]}={name})."
            for name, value in self._untracked()
            if name in self._before and self._before[name][0] is value and self._before[name][1] != _fingerprint(value)
        }
        self.close()
        return tuple(found.values())

    def close(self) -> None:
        self._frame, self._before = None, {}

    def _untracked(self) -> Iterator[tuple[str, Any]]:
        found = {} if self._frame is None else dict(self._frame.f_locals)
        owner = found.get("self")
        found |= {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
        for name, value in found.items():
            if is_module(value):
                if not all(id(tensor) in self._saved for tensor in _tensors(value)):
                    yield name, value
            elif id(value) not in self._saved and (is_generator(value) or is_torch(value, "optim.Optimizer")):
                yield name, value


def _fingerprint(value: Any) -> Hashable:
    if is_generator(value):
        state = state_of(value)
        return state.numpy().tobytes() if is_torch(state, "Tensor") else repr(state)
    return tuple(tensor._version for tensor in _tensors(value))


def _tensors(value: Any) -> list[Any]:
    if is_module(value):
        return [*value.parameters(), *value.buffers()]
    return [tensor for group in value.param_groups for tensor in group["params"]]


def _global_generators() -> set[int]:
    torch = sys.modules.get("torch")
    found = {id(getattr(random, "_inst", None)), id(getattr(np.random.mtrand, "_rand", None))}
    return found if torch is None else found | {id(torch.default_generator)}


def untrackable(name: str, item: Any) -> str:
    start = f"trial.track({name}=...) got a {type(item).__module__}.{type(item).__qualname__}".replace(
        " builtins.", " "
    )
    try:
        plain_value(item, name)
    except ObjectiveError:
        return (
            f"{start}, which has no state_dict() and load_state_dict(). Track objects that have both, or a random "
            "generator of python, numpy or torch (of a DataLoader its own one, if any); plain values go into "
            "hpo_core.State(...). Make an iterator anew in each step."
        )
    return (
        f"{start}, which cannot be loaded in place. Keep plain values in a State: state = "
        f"hpo_core.State({name}=...); trial.track(state=state); then use state.{name}."
    )
