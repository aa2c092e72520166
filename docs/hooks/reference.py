"""Hooks of mkdocs: markers in a page become tables that are read from the code.

==============================  ===============================================================
``<!-- settings: NAME -->``     the settings of a section of the study file, from the pydantic models
``<!-- classes -->``            the public classes of these models, each with its table
``<!-- commands -->``           commands and options, from typer
``<!-- exit codes -->``         from the docstring of ``hpo_core.cli.app``
``<!-- environment -->``        variables, from lines ``HPO_NAME   meaning`` in docstrings
``<!-- events -->``             what a journal holds, from ``hpo_core.model.events``
``<!-- limits -->``             from ``hpo_core.model.limits``
==============================  ===============================================================

What has no description fails the build.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
CODE = sorted([*(ROOT / "hpo_core").rglob("*.py"), *(ROOT / "flows").rglob("*.py")])
INTERNAL = {"HPO_FOLLOW", "HPO_ZYGOTE"}
"""Variables that one process sets for another; no person does."""
OF_MOST = {"home", "journal", "as_json", "prefect"}
"""Options that a page of commands says once."""
FIELDS = {
    "trial": "number of the trial, from 0",
    "attempt": "number of the attempt, from 0 in each trial",
    "bracket": "number of the bracket",
    "rung": "number of the rung in its bracket; the generation in a population",
    "stage": "bracket and rung",
    "resource": "units that the checkpoint or result was trained to",
    "target": "units that the job trains to",
    "params": "values by the parameter's name",
    "metrics": "all values that were reported last",
    "checkpoint": "uri, digest and resource; none: the training begins anew",
    "worker": "name of the worker",
    "started": "seconds since the epoch",
    "ended": "seconds since the epoch",
    "reason": "in words",
    "message": "in words",
    "outcome": "how the attempt ended",
    "controller": "host, process and random id of the process that runs the study",
    "inventory": "the slots or devices that are there",
    "configs": "how many more",
    "placements": "one `JobPlaced` for each job",
    "parent": "number of the trial that it continues; none: it begins anew",
    "child": "number of the new trial",
    "initiator": "number of the trial whose member looked for an opponent",
    "opponent": "number of the trial that it met; none: it met nobody",
    "retry": "true: an earlier attempt at this target failed",
    "demand": "slots, or share of a device",
    "loss": "the metric, with the sign of one to be minimized; none: not finite",
    "chance": "estimated probability that the trial is promoted after all",
    "rank": "place among the results of its rung, from 1",
    "results": "number of results of that rung",
    "level": "units of the rung that opens",
    "tolerance": "difference of losses that counts as none",
    "place": "place in the top rung, from 1",
    "expected": "trials that could stand at that place",
    "spec": "the whole description of the study",
    "report": "result, or error, of the attempt",
}
"""Fields that mean the same in each event of the journal."""
_MARKER = re.compile(r"<!-- (settings: \w+|classes|commands|exit codes|environment|events|limits) -->")
_VARIABLE = re.compile(r"^ *(HPO_[A-Z_]+) {2,}(\S.*(?:\n {20,}\S.*)*)", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables."""
    return _MARKER.sub(lambda found: generated(found[1]), markdown)


def generated(marker: str) -> str:
    """Markdown for a marker."""
    name, _, section = marker.partition(": ")
    return settings_tables(section) if section else _TABLES[name]()


def _described(what: str, words: str | None, cure: str) -> str:
    if not words:
        raise PluginError(f"{what} has no description: {cure}")
    return words


def _table(head: str, rows: list[list[str]]) -> str:
    titles = head.split(", ")
    lines = [titles, ["---"] * len(titles), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@functools.cache
def _docstrings(path: Path) -> tuple[ast.Module, dict[ast.AST, str]]:
    """A module, and the text that stands below each of its assignments, at any depth."""
    tree = ast.parse(path.read_text())
    found = {}
    for parent in ast.walk(tree):
        body = getattr(parent, "body", None)
        for node, below in pairwise(body) if isinstance(body, list) else ():
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and type(below.value.value) is str:
                found[node] = " ".join(below.value.value.split())
    return tree, found


def limits() -> str:
    """Every limit with its value."""
    path = ROOT / "hpo_core" / "model" / "limits.py"
    from hpo_core.model import limits

    tree, words = _docstrings(path)
    rows = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            meaning = _described(f"The limit {name}", words.get(node), f"write a docstring below it in {path}")
            rows.append([f"`{name}`", _limit(getattr(limits, name)), meaning])
    return _table("limit, at most, of", rows)


def _limit(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"`{name}`: {_limit(one)}" for name, one in value.items())
    if value > 2**50:
        power = (round(value) + 1).bit_length() - 1
        return f"2^{power} - {2**power - value}".removesuffix(" - 0")
    return f"{value:,.0f}"


def environment() -> str:
    """Every variable that the code names."""
    described: dict[str, str] = {}
    named: dict[str, Path] = {}
    for path in CODE:
        text = path.read_text()
        described |= {name: " ".join(words.split()) for name, words in _VARIABLE.findall(text)}
        named |= dict.fromkeys(re.findall(r"\bHPO_[A-Z]+(?:_[A-Z]+)*\b", text), path)
    rows = []
    for name in sorted(named.keys() - INTERNAL):
        cure = f"write a line `{name}    what it means` into the docstring of the module that reads it ({named[name]})"
        rows.append([f"`{name}`", _described(f"The variable {name}", described.get(name), cure)])
    return _table("variable, meaning", rows)


def exit_codes() -> str:
    """The codes that the docstring of the command lists."""
    from hpo_core.cli import app

    listed = " ".join(str(app.__doc__).partition("Exit codes: ")[2].split()).rstrip(".")
    return _table("code, means", [list(code.partition(" ")[::2]) for code in listed.split("; ")])


def commands() -> str:
    """Commands by group, each with its arguments and options."""
    from typer.main import get_command

    from hpo_core.cli.app import GROUPS
    from hpo_flows.command import app

    known: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    parts: list[str] = []
    common: list[list[str]] = []
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            command = known.pop(name)
            arguments = [p for p in command.params if p.param_type_name == "argument"]
            usage = " ".join(
                ["hpo", name, *(a.name.upper() if a.required else f"[{a.name.upper()}]" for a in arguments)]
            )
            words = _described(f"hpo {name}", command.help, "give its function a docstring")
            rows = []
            for option in command.params:
                cure = "give it help=..."
                meaning = _described(f"{name} {option.name}", getattr(option, "help", None), cure)
                spelled = (
                    option.name.upper() if option in arguments else ", ".join([*option.opts, *option.secondary_opts])
                )
                (common if option.name in OF_MOST else rows).append([f"`{spelled}`", meaning])
            parts += [f"### `{usage}` {{ #{name} }}", _text(words).replace("\b", "")]
            parts += [_table("argument or option, meaning", rows)] if rows else []
    once = [list(row) for row in dict.fromkeys(map(tuple, common))]
    parts += ["## Options of most commands", _table("option, meaning", once)]
    if known:
        raise PluginError(f"Commands in no group: {', '.join(known)}. Add each to GROUPS in hpo_core/cli/app.py.")
    return "\n\n".join(parts)


def events() -> str:
    """Stimuli and events, each with its fields."""
    import typing

    from hpo_core.model import events

    path = ROOT / "hpo_core" / "model" / "events.py"
    tree, words = _docstrings(path)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def fields(name: str) -> list[tuple[str, str]]:
        node = classes[name]
        found = [f for base in node.bases if isinstance(base, ast.Name) and base.id in classes for f in fields(base.id)]
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                field = line.target.id
                cure = f"write a docstring below it in {path}"
                said = words.get(line) or FIELDS.get(field)
                found.append((field, _described(f"{name}.{field}", said, cure)))
        return found

    def table(union: Any) -> str:
        parts = []
        for one in typing.get_args(union):
            cure = f"give the class a docstring in {path}"
            text = _described(f"The event {one.__name__}", ast.get_docstring(classes[one.__name__]), cure)
            rows = [[f"`{field}`", meaning] for field, meaning in fields(one.__name__)]
            parts += [f"### {one.__name__}", _text(re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text))]
            parts += [_table("field, meaning", rows)] if rows else []
        return "\n\n".join(parts)

    return f"## Stimuli\n\n{table(events.Stimulus)}\n\n## Events\n\n{table(events.Event)}"


def classes() -> str:
    """Public classes of the study file, with a link to the table of their arguments."""
    from pydantic import BaseModel

    import hpo_core

    tables = {one: f"{place}" for section in _sections() for one, place in _places(section).items()}
    rows = []
    for name in hpo_core.__all__:
        kind = getattr(hpo_core, name)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name != "StudySpec":
            words = _described(name, (kind.__doc__ or "").partition("\n\n")[0], "give the class a docstring")
            place = tables[kind.__name__]
            call = f'<code id="hpo_core.{name}">hpo.{name}</code>'
            rows.append([call, " ".join(words.split()), f"[arguments](study-file.md#{place})"])
    return _table("class, describes, ", rows)


def _sections() -> list[str]:
    from hpo_core import StudySpec

    return [name for name in StudySpec.model_fields if models_of(name)]


def _places(section: str) -> dict[str, str]:
    """Anchor of the table of each model in a section."""
    text = settings_tables(section)
    models, found = models_of(section), {}
    for model in models:
        kind = next((s["const"] for s in settings_of(model).values() if "const" in s), None)
        found[model] = f"{section}-{kind}" if kind else section
    for model in _schema()["$defs"]:
        held = [name for one in models for name, s in settings_of(one).items() if model in _references(s)]
        if model not in found and held:
            found[model] = held[0] if f"#{held[0]} " in text else found[models[0]]
    return {model: place for model, place in found.items() if section != "metrics"}


@functools.cache
def _schema() -> dict[str, Any]:
    from hpo_core import StudySpec

    return StudySpec.model_json_schema()


def models_of(section: str) -> list[str]:
    """Names of the models of one section of the study file; ``study`` is the whole."""
    if section == "study":
        return [""]
    return [name for name in _references(_schema()["properties"][section]) if not name.startswith("Recorded")]


def settings_of(model: str) -> dict[str, dict[str, Any]]:
    """The settings of a model by name, as JSON schema; those that only journals fill in are left out."""
    described: dict[str, Any] = _schema() if not model else _schema()["$defs"][model]
    found: dict[str, dict[str, Any]] = described.get("properties", {})
    journaled = {"WarmStartSpec": {"past"}}.get(model, set())
    return {name: setting for name, setting in found.items() if name not in journaled}


def _references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        named = [str(value).rpartition("/")[2] for key, value in schema.items() if key == "$ref"]
        return named + [name for key, value in schema.items() if key != "discriminator" for name in _references(value)]
    return [name for item in schema for name in _references(item)] if isinstance(schema, list) else []


def settings_tables(section: str) -> str:
    """Markdown tables of all settings of a section: one table for each of its models."""
    tables = []
    models = dict.fromkeys(models_of(section), "")
    """By model: the setting of another one that holds it."""
    for model in (waiting := list(models)):
        described = _schema() if not model else _schema()["$defs"][model]
        required = described.get("required", [])
        kind = next((s["const"] for s in settings_of(model).values() if "const" in s), None)
        title, anchor = (kind, f"{section}-{kind}") if kind else (models[model], models[model])
        words = _text(str(described.get("description", "")).partition("\n\nArguments:")[0])
        head = f"#### `{title}` {{ #{anchor} }}\n\n{words}\n\n" if title else ""
        rows = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
        for name, setting in settings_of(model).items():
            default = "**required**" if name in required else _default(setting)
            values = f"[below](#{name})" if _is_section(setting) else _values(setting)
            for inner in _references(setting) if model and _is_section(setting) else ():
                if inner not in models:
                    models[inner] = name
                    waiting.append(inner)
            rows.append(f"| `{name}` | {values} | {default} | {_cell(_meaning(model, name, setting))} |")
        tables.append(head + "\n".join(rows))
    return "\n\n".join(tables)


def _is_section(setting: dict[str, Any]) -> bool:
    """Whether a setting is a section of the study file, with a table of its own."""
    inner = setting.get("additionalProperties")
    kinds = setting.get("oneOf", ())
    named = "$ref" in setting or (isinstance(inner, dict) and "oneOf" in inner)
    named = named or bool(kinds and all("$ref" in kind for kind in kinds))
    optional = any("$ref" in option for option in setting.get("anyOf", ()))
    return bool(named or optional) and setting.get("type") != "array"


def _meaning(model: str, name: str, setting: dict[str, Any]) -> str:
    """Its description; of a section the first sentence about its model; of a discriminator what it selects."""
    found = setting.get("description", "Selects this kind." if "const" in setting else "")
    if not found and "$ref" in setting:
        found = _schema()["$defs"][setting["$ref"].rpartition("/")[2]].get("description", "").partition("\n\n")[0]
    return _described(f"{model or 'The setting'} {name}", found, "give it Field(description=...)")


def _text(text: str) -> str:
    return text.replace("``", "`")


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _default(setting: dict[str, Any]) -> str:
    if "default" not in setting:
        return "empty" if setting.get("type") in ("array", "object") else ""
    value = setting["default"]
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "of each setting" if len(value) != 1 else f"`{{{next(iter(value))}: {next(iter(value.values()))}}}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _values(setting: dict[str, Any]) -> str:
    if "enum" in setting:
        return ", ".join(f"`{value}`" for value in setting["enum"])
    if "const" in setting:
        return f"`{setting['const']}`"
    if forms := setting.get("anyOf", setting.get("oneOf")):
        kinds = [_values(option) for option in forms if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in setting:
        return f"`{{{', '.join(settings_of(setting['$ref'].rpartition('/')[2]))}}}`"
    kind = {"array": "list", "object": "mapping", "string": "text", "integer": "whole number"}
    return kind.get(setting.get("type", ""), setting.get("type", "any")) + _range(setting)


def _range(setting: dict[str, Any]) -> str:
    low, above = setting.get("minimum"), setting.get("exclusiveMinimum")
    high, below = setting.get("maximum"), setting.get("exclusiveMaximum")
    limits = [f"{word} {value:,}" for word, value in (("≥", low), (">", above)) if value is not None]
    if high is not None and high < 2**53:
        limits.append(f"≤ {high:,}")
    if below is not None:
        limits.append(f"< {below:,}")
    return f", {', '.join(limits)}" if limits else ""


_TABLES: dict[str, Callable[[], str]] = {
    "classes": classes,
    "commands": commands,
    "exit codes": exit_codes,
    "environment": environment,
    "events": events,
    "limits": limits,
}
