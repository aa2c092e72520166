"""Arguments of ``hpo_core.tune`` as the plain data of a study file; what is none of them is refused in words."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import secrets
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.features import feature
from hpo_core.model.settings import MetricSpec, plain
from hpo_core.model.short_text import shown
from hpo_core.model.space.parameter import ParameterType
from hpo_core.search.search_settings import SearchSettings
from hpo_core.spec.sections import (
    AddressClusterSpec,
    ClusterSettings,
    SamplerSpec,
    StopSpec,
)
from hpo_core.spec.sent_functions import called_name, function_name
from hpo_core.training.objective import check_signature, load_objective, objective_callable
from hpo_core.training.user_code import is_library_file

log = logging.getLogger("hpo.python")
_SAID_AFTER = 2.0
"""Seconds after which a search for a space says that it goes on."""


def objective_settings(
    objective: Callable[..., Any] | str,
    space: Mapping[str, Any] | None,
    style: Literal["handle", "optuna"] | None,
    pythonpath: Sequence[str | Path],
) -> tuple[dict[str, Any], Literal["min", "max"]]:
    """The settings that say what is trained, and the mode of its metric."""
    folders = [*(str(Path(folder).resolve()) for folder in pythonpath), str(_folder_of_main())]
    if not isinstance(objective, str):
        check_objective(objective)
    named = function_name(objective)
    data: dict[str, Any] = {"objective": named, "pythonpath": list(dict.fromkeys(folders))}
    if space is not None:
        if not isinstance(space, Mapping):
            raise SpecError(f"hpo.tune: space = {shown(space)} is no mapping; give {{name: hpo.Float(...)}}.")
        _check_space(space)
        return data | {"style": style or "handle", "space": plain_settings(space)}, "min"
    missing = "hpo.tune: space is missing: give space={name: hpo.Float(...)}"
    if style == "handle":
        raise SpecError(f"{missing}.")
    dry_calls = feature("Optuna", "optuna_space")
    slow = threading.Timer(
        _SAID_AFTER,
        log.warning,
        [
            "hpo.tune: finding the space; the objective is called to its first report, "
            f"for up to {dry_calls.MAX_SECONDS:g} s ..."
        ],
    )
    slow.daemon = True
    slow.start()
    try:
        found = dry_calls.find_space(load_objective(named, folders) if isinstance(objective, str) else objective)
    except Exception as error:
        raise SpecError(
            f"{missing}. An Optuna objective needs none, and this one failed when it was called as such: "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        slow.cancel()
    if found.gaps:
        log.warning("hpo.tune: %s If so, give space= with all parameters.", found.words())
    data |= {"style": "optuna", "space": found.space}
    return data | (
        {"constraints": found.constraints} if found.constraints else {}
    ), "max" if found.mode == "max" else "min"


def _check_space(space: Mapping[str, Any], group: str = "space") -> None:
    """Refuse what is no parameter; those of a study file, which have a ``type``, are left to its reader."""
    for name, value in space.items():
        place = f"{group}[{name!r}]"
        if not isinstance(name, str):
            raise SpecError(f"hpo.tune: {place}: a parameter's name is text; put it in quotes.")
        if isinstance(value, Mapping):
            if "type" not in value:
                _check_space(value, place)
        elif not isinstance(value, ParameterType):
            raise SpecError(
                f"hpo.tune: {place} = {shown(value)} is no parameter; give hpo.Float(low, high), hpo.Int(low, high) "
                "or hpo.Choice(...). What is fixed goes into constants={name: value}."
            )


def check_list(argument: str, value: Any) -> None:
    if isinstance(value, str | PathLike | Mapping) or not isinstance(value, Iterable):
        raise SpecError(f"hpo.tune: {argument} = {shown(value)} is no list; write {argument}=[...].")


def check_callbacks(call: str, callbacks: Any) -> None:
    if isinstance(callbacks, str | Mapping) or not isinstance(callbacks, Iterable):
        raise SpecError(f"{call}: callbacks = {shown(callbacks)} is no list; write callbacks=[...].")
    for callback in callbacks:
        if not callable(callback):
            raise SpecError(
                f"{call}: callbacks holds {shown(callback)}, which cannot be called; give functions of one argument, "
                "the report."
            )


def check_objective(objective: Callable[..., Any]) -> None:
    """Refuse what cannot be called with a trial, before it is sent anywhere."""
    if not callable(objective):
        raise SpecError(
            f"hpo.tune: objective = {shown(objective)} cannot be called; give the training function itself, "
            'hpo.tune(train, ...), or its name, "module:train".'
        )
    if inspect.isclass(objective):
        try:
            objective_callable(objective)
        except ObjectiveError as error:
            raise SpecError(f"hpo.tune: {error}") from None
        return
    check_signature("objective", getattr(objective, "__qualname__", type(objective).__qualname__), objective)


def _folder_of_main() -> Path:
    """Folder that a script's own modules are imported from; the working folder in a notebook or at a prompt.

    Of ``python -m package.module`` it is the folder that holds the package.
    """
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    path = Path(file or "").resolve()
    if not file or is_library_file(str(path)) or str(path.parent) == sysconfig.get_path("scripts"):  # such as pytest
        return Path.cwd()
    return path.parents[0 if spec is None else spec.name.count(".")]


def metric_settings(
    metric: str | MetricSpec | Sequence[str | MetricSpec] | None, mode: str | None, usual_mode: str, style: str
) -> dict[str, Any]:
    """The section ``metric``, or ``metrics``.

    Args:
        mode: as it was given; None: ``usual_mode``.
    """
    for one in metric if isinstance(metric, list | tuple) else [metric]:
        if mode is not None and isinstance(one, MetricSpec) and "mode" not in one.model_fields_set:
            raise SpecError(
                f"hpo.tune: mode = {shown(mode)} belongs to metrics given by name; here say "
                f'hpo.Metric("{one.name}", "{mode}").'
            )
    mode = mode or usual_mode
    if metric is None:
        if style != "optuna":
            raise SpecError(
                'hpo.tune: metric is missing: the name that the function reports, such as metric="val_loss".'
            )
        metric = "value"
    if isinstance(metric, str | MetricSpec | Mapping):
        return {"metric": _metric(metric, mode)}
    if not isinstance(metric, Sequence) or not metric:
        raise SpecError(
            f'hpo.tune: metric = {shown(metric)} names none; give what the function reports, metric="val_loss", or a '
            "list of such names."
        )
    return {"metrics": [_metric(one, mode) for one in metric]}


def _metric(metric: Any, mode: str) -> Any:
    return {"name": metric, "mode": mode} if isinstance(metric, str) else plain_settings(metric)


def search_settings(
    method: SearchSettings | Mapping[str, Any] | str, max_trials: int | None, *, stops: bool
) -> dict[str, Any]:
    if not isinstance(method, SearchSettings | Mapping | str):
        raise SpecError(
            f"hpo.tune: method = {shown(method)} is no search; give hpo.Asha(configs=60, max_resource=27) or the like."
        )
    search: dict[str, Any] = {"method": method} if isinstance(method, str) else plain_settings(method)
    if max_trials is None and search == {"method": "random"} and not stops:
        raise SpecError(
            "hpo.tune: the study would have no end; give max_trials or max_seconds, or a method such as "
            "hpo.Asha(configs=60, max_resource=27)."
        )
    if max_trials is not None:
        if search.get("configs") not in (None, max_trials):
            raise SpecError(
                f"hpo.tune: max_trials = {max_trials}, but method has configs = {search['configs']}; give one."
            )
        search["configs"] = max_trials
    return search


def sampler_settings(sampler: Any) -> dict[str, Any]:
    if isinstance(sampler, str):
        return {"name": sampler}
    if isinstance(sampler, SamplerSpec | Mapping):
        return dict(plain_settings(sampler))
    name = sampler.__name__ if inspect.isclass(sampler) else type(sampler).__name__
    raise SpecError(
        f'hpo.tune: sampler = {shown(sampler)} is no name: give that of a sampler, such as "{name}", and its arguments '
        f'as hpo.Sampler("{name}", ...).'
    )


def stop_rules(
    stop: StopSpec | Mapping[str, Any] | None, seconds: float | None, target: float | None
) -> dict[str, Any]:
    """Rules that end the study early: the section, and what has an argument of its own."""
    rules: dict[str, Any] = dict(plain_settings(stop or {}))
    for argument, rule, value in (("max_seconds", "seconds", seconds), ("target", "target", target)):
        if value is not None:
            if rules.get(rule) not in (None, value):
                raise SpecError(f"hpo.tune: {argument} = {value}, but stop has {rule} = {rules[rule]}; give one.")
            rules[rule] = value
    return rules


def cluster_settings(cluster: Any) -> tuple[dict[str, Any], Any]:
    """The settings of a cluster, and ``distributed.Security`` where a Dask object was given.

    Of such an object address and certificates are taken, nothing else is used: the study has a client of its own.

    Raises:
        SpecError: it is no cluster, is closed, or lives in the event loop that this call would block.
    """
    if isinstance(cluster, str):
        return {"kind": "address", "address": cluster}, None
    if isinstance(cluster, ClusterSettings | Mapping):
        return plain_settings(cluster), None
    scheduler = getattr(cluster, "scheduler", None)
    address = getattr(cluster, "scheduler_address", None) or getattr(scheduler, "address", None)
    named = f"hpo.tune: cluster = {type(cluster).__name__}(...)"
    if not hasattr(cluster, "scheduler") or not hasattr(cluster, "loop"):
        raise SpecError(
            f"hpo.tune: cluster = {cluster!r:.100} is no cluster: give hpo.Slurm(...), an address, a "
            "distributed.Client, or a running Dask cluster."
        )
    status = str(getattr(cluster.status, "name", cluster.status))
    if status != "running" or not address:
        raise SpecError(f"{named} is {status}; give one that is connected (await an asynchronous one first).")
    if getattr(cluster.loop, "asyncio_loop", None) is asyncio._get_running_loop() is not None:
        raise SpecError(
            f"{named} lives in the event loop of this thread, which the call would block. Call it in a thread: "
            "result = await asyncio.to_thread(hpo.tune, ...)."
        )
    return plain_settings(AddressClusterSpec(address=address)), getattr(cluster, "security", None)


def plain_settings(value: Any) -> Any:
    """Settings as plain data, what is not set left out."""
    if isinstance(value, BaseModel):
        tags = {name: getattr(value, name) for name in ("method", "kind", "type") if name in type(value).model_fields}
        return value.model_dump(mode="json", exclude_unset=True) | tags
    if isinstance(value, Mapping):
        return {plain(key): plain_settings(one) for key, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain_settings(one) for one in value]
    return plain(function_name(value))


def new_name(objective: Callable[..., Any] | str) -> str:
    called = objective.partition(":")[2] if isinstance(objective, str) else called_name(objective)
    stem = re.sub(r"[^A-Za-z0-9]+", "-", called).strip("-") or "study"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
