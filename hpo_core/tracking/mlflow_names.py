"""Names and values as MLflow accepts them: one that it refuses would stop the copy."""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import lru_cache
from typing import Any

from hpo_core.model.devices.usage import Usage
from hpo_core.security.untrusted_text import terminal_text

_LONGEST_KEY = 250
_LONGEST_PARAM = 6000
LONGEST_TAG = 5000  # 8000 in MLflow's own store; older servers and other ones take 5000
_FORBIDDEN = re.compile(r"[^\w/. \-]")


@lru_cache(maxsize=4096)
def legal_key(name: str) -> str:
    """``name`` where MLflow takes it, else a likeness that no other name is turned into.

    >>> legal_key("val/loss"), legal_key("f1@5")
    ('val/loss', 'f1_5-d78748')
    """
    path = posixpath.normpath(name)
    if (
        name == path
        and name != "."
        and not name.startswith(("..", "/"))
        and len(name) <= _LONGEST_KEY
        and not _FORBIDDEN.search(name)
    ):
        return name
    likeness = _FORBIDDEN.sub("_", name).replace("/", "_").strip(".")[: _LONGEST_KEY - 10]
    return f"{likeness or 'unnamed'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def param_value(value: Any) -> str:
    """A parameter's value as text; PostgreSQL takes no NUL, and nobody a half of a character."""
    return _cut(terminal_text(str(value), lines=True), _LONGEST_PARAM)


def tag_value(value: Any) -> str:
    """A tag's value as text."""
    return _cut(terminal_text(str(value), lines=True), LONGEST_TAG)


def milliseconds(seconds: float) -> int:
    """A time as MLflow wants it; never 0, which it takes for "now"."""
    return max(1, round(seconds * 1000))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 4] + " ..."


def usage_metrics(usage: Usage) -> dict[str, float]:
    """What an attempt used, named as MLflow names its own system metrics, where it has one.

    >>> usage_metrics(Usage(memory=212_000_000, cores=1.5, compute=0.25))
    {'system/system_memory_usage_megabytes': 212.0, 'system/cpu_utilization_percentage': 150.0, \
'system/gpu_0_utilization_percentage': 25.0}
    """
    known = {
        "system/system_memory_usage_megabytes": usage.memory / 1e6,
        "system/cpu_utilization_percentage": usage.cores * 100,
        "system/gpu_0_memory_usage_megabytes": None if usage.device_memory is None else usage.device_memory / 1e6,
        "system/gpu_0_utilization_percentage": None if usage.compute is None else usage.compute * 100,
        "system/startup_seconds": usage.startup_seconds,
        "system/seconds_per_unit": usage.unit_seconds,
    }
    return {key: value for key, value in known.items() if value}
