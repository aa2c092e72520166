"""Descriptions that attack whoever reads them, and a process of its own in which each is read.

Each attack is a function of a folder; it hands a description in as a user would (file, mapping, --set, form,
journal) and returns what came out. :func:`measured` runs it in a forked child under limits of memory and CPU
time: what explodes ends the child, not the tests.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hpo_core import Study, StudySpec, load_spec
from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.spec.assembly import notices
from hpo_core.spec.study_file import changed
from hpo_flows.deployed.permissions import Permissions
from hpo_flows.prefect_pages.study_tasks import expected_jobs
from tests.deployed.filled_forms import filled_in

SPACE: dict[str, Any] = {"x": {"type": "float", "low": 0.0, "high": 1.0}}
RANDOM: dict[str, Any] = {"method": "random", "configs": 4}
ROOM = 300
"""Megabytes that reading one description may take in all."""
SECONDS = 5.0
"""CPU seconds at most; on an idle core each takes less than one."""


def plain(**changes: Any) -> dict[str, Any]:
    return {"study": "s", "metric": {"name": "loss"}, "space": SPACE, "search": RANDOM} | changes


def search(**settings: Any) -> dict[str, Any]:
    return plain(search=settings)


def _choices(*values: Any) -> dict[str, Any]:
    return {"type": "categorical", "choices": list(values)}


def _nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def _circle() -> dict[str, Any]:
    found = plain()
    found["tracking"] = found
    return found


def _chain(length: int) -> dict[str, Any]:
    space: dict[str, Any] = {"p0": _choices(0, 1)}
    for i in range(1, length):
        space[f"p{i}"] = _choices(0, 1) | {"when": {f"p{i - 1}": 1}}
    return space


def _grid(count: int, points: Any) -> dict[str, Any]:
    space = {f"x{i}": SPACE["x"] for i in range(count)}
    return plain(space=space, search={"method": "grid", "points": dict.fromkeys(space, points)})


MAPPINGS: dict[str, Callable[[], Any]] = {
    "hyperband-of-many-rungs": lambda: search(method="hyperband", max_resource=2**53, reduction_factor=1.1),
    "grid-of-1e48-points": lambda: _grid(16, 1000),
    "parameters": lambda: plain(space={f"p{i}": SPACE["x"] for i in range(100_000)}),
    "choices": lambda: plain(space={"x": _choices(*range(1_000_000))}),
    "chain-of-conditions": lambda: plain(space=_chain(3000)),
    "unknown-keys": lambda: plain(**{f"key{i}": 1 for i in range(500_000)}),
    "deep": lambda: plain(space=_nested(100_000)),
    "circle": _circle,
    "integer-of-5000-digits": lambda: plain(seed=10**5000),
    "an-object": lambda: plain(sampler={"name": "TPESampler", "gamma": object()}),
}  # fmt: skip
"""By name: a mapping as Python hands it in."""

_HEAD = (
    "study: s\nmetric: {name: loss}\nspace: {x: {type: float, low: 0, high: 1}}\nsearch: {method: random, configs: 4}\n"
)
_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
FILES: dict[str, Callable[[], str | bytes]] = {
    "alias-bomb": lambda: _HEAD + _BOMB,
    "deep-flow": lambda: _HEAD + "tracking: " + "[" * 100_000,
    "tag-python": lambda: _HEAD + "seed: !!python/object/apply:os.system ['true']\n",
    "not-utf-8": lambda: _HEAD.encode() + b"\xff\xfe\xfa",
    "10-MB-value": lambda: _HEAD + f"objective: a:{'b' * 10_000_000}\n",
    "100-MB": lambda: _HEAD,  # and comments
    "home-of-nobody": lambda: _HEAD + "pythonpath: [~nobody-at-all/lib]\n",
}  # fmt: skip
"""By name: the text of a study file."""

SETS: dict[str, Callable[[], str]] = {
    "deep-value": lambda: "space=" + "[" * 100_000,
    "deep-key": lambda: "a." * 50_000 + "a=1",
    "long": lambda: "objective=" + "x" * 120_000,
}

_ROW = {"name": "x", "low": 0.0, "high": 1.0}


def _filled_choices(value: str) -> dict[str, Any]:
    return {"space": {"categorical": [{"name": "c", "choices": [value, "b"]}]}}


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "rows": lambda: {"space": {"float": [_ROW | {"name": f"x{i}"} for i in range(100_000)]}},
    "deep-value": lambda: _filled_choices("[" * 100_000),
    "alias-bomb-as-value": lambda: _filled_choices(_BOMB),
    "deep-row": lambda: {"space": {"float": _nested(100_000)}},
}  # fmt: skip
"""By name: fields of the form besides the objective."""


def _of_mapping(name: str, folder: Path) -> Any:
    return Study.create(MAPPINGS[name]()).ask()


def _of_file(name: str, folder: Path) -> Any:
    path = folder / "study.yaml"
    content = FILES[name]()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if name == "100-MB":
        with path.open("ab") as file:
            for _ in range(100):
                file.write(b"# comment\n" * 100_000)
    return Study.create(load_spec(path)).ask()


def _of_set(name: str, folder: Path) -> Any:
    return Study.create(StudySpec.from_plain(changed(plain(), [SETS[name]()]))).ask()


def _of_form(name: str, folder: Path) -> Any:
    fields = {"objective": "a:b", "metric": {"name": "loss"}, "search": {"random": {"configs": 4}}} | FORMS[name]()
    return Study.create(filled_in(Permissions(("a:b",)), **fields)).ask()


ATTACKS: dict[str, Callable[[str, Path], Any]] = {
    **{f"mapping/{name}": _of_mapping for name in MAPPINGS},
    **{f"file/{name}": _of_file for name in FILES},
    **{f"set/{name}": _of_set for name in SETS},
    **{f"form/{name}": _of_form for name in FORMS},
}


@dataclass(frozen=True)
class Seen:
    outcome: str
    """``accepted``, ``refused``, the name of another exception, or ``died`` (no memory, no CPU time left)."""
    message: str
    seconds: float
    """CPU seconds."""
    megabytes: int
    """Largest resident size of the process."""


def measured(work: Callable[..., Any], *arguments: Any) -> Seen:
    """Run ``work`` in a forked child under limits, and say how it ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.security.descriptions", "optuna", "hpo_core.optuna.optuna_sampler"])
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(there, work, arguments))
    child.start()
    there.close()
    try:
        if not here.poll(150):
            return Seen("died", "no answer within 150 s", math.inf, 0)
        found = here.recv()
        assert isinstance(found, Seen)
        return found
    except EOFError:
        child.join(30)
        return Seen("died", f"exit code {child.exitcode}", math.inf, 0)
    finally:
        if child.is_alive():
            child.kill()
        child.join(30)


def attack(name: str, folder: str) -> Any:
    return ATTACKS[name](name.partition("/")[2], Path(folder))


def _run(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    room = _status("VmSize") + 2 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    began = _cpu()
    try:
        work(*arguments)
        outcome, message = "accepted", ""
    except SpecError as error:
        outcome, message = "refused", str(error)
    except Exception as error:
        outcome, message = type(error).__name__, f"{error!r:.300}"
    pipe.send(Seen(outcome, message, _cpu() - began, _status("VmHWM") // 2**20))
    os._exit(0)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _status(key: str) -> int:
    """A size of this process in bytes, from /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


# What is accepted, at its largest.

_WIDE: dict[str, Any] = {f"p{i}": {"type": "float", "low": 0.0, "high": 1.0} for i in range(limits.PARAMETERS)}
LARGEST: dict[str, Callable[[], dict[str, Any]]] = {
    "chain-of-conditions": lambda: plain(space=_chain(limits.PARAMETERS)),
    "asha-shared": lambda: search(
        method="asha", configs=limits.CONFIGS, min_resource=10**12, max_resource=10**16 // 2, reduction_factor=1.1,
        brackets="all", rung_system="shared", assignment="proportional",
    ),
    "hyperband": lambda: search(method="hyperband", max_resource=2**24, min_resource=1, reduction_factor=2),
    "pbt": lambda: search(method="pbt", population=20_000, generations=limits.PLANNED_RUNGS),
    "grid-shuffled": lambda: plain(
        space={f"x{i}": SPACE["x"] for i in range(6)},
        search={"method": "grid", "points": {f"x{i}": 10 for i in range(6)}},
    ),
    "tpe": lambda: plain(
        space={name: _WIDE[name] for name in list(_WIDE)[:200]},
        sampler={"name": "TPESampler", "n_ei_candidates": 10_000},
    ),
}  # fmt: skip
"""By name: descriptions at the edge of what is accepted."""


def begun(name: str) -> None:
    """Validate, create, ask; journal it; and all that is reckoned before a study starts, or shown of it then."""
    spec = StudySpec.from_plain(LARGEST[name]())
    notices(spec)
    study = Study.create(spec)
    expected_jobs(study)
    job = study.ask()
    assert job is not None
    study.method.rungs()
    text = [encode_entry(entry) for entry in study.journal.entries(spec.study)]
    Study.from_entries([decode_entry(line) for line in text])
