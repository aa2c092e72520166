"""Hooks of mkdocs: files of the repository as pages, links between them, tables of settings.

Some pages of the site are files that belong elsewhere in the repository (``SECURITY.md``). The hooks add them, and
rewrite relative links so that the same file works in the repository and on the site. A marker such as
``<!-- settings: checkpoints -->`` becomes a table of that section's settings, read from the pydantic models.
"""

from __future__ import annotations

import functools
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "deployments/README.md": "deployments.md",
    "examples/retrain/README.md": "retraining-example.md",
}
"""Files of the repository that are pages of the site, with their names there."""
for _readme in sorted([*ROOT.glob("hpo_core/**/README.md"), *ROOT.glob("flows/hpo_flows/**/README.md")]):
    _package = _readme.parent.relative_to(ROOT).as_posix()
    PAGES[f"{_package}/README.md"] = f"packages/{_package.removeprefix('flows/').replace('/', '-')}.md"
FIELDS = {
    "space": "The parameters, by name.",
    "search": "The search method and its settings.",
    "cluster": "Where jobs train.",
    "name": "`random`, or the class name of one of Optuna's samplers.",
    "low": "Smallest value.",
    "high": "Largest value; it is included.",
    "log": "Whether values are uniform in the logarithm.",
    "step": "Distance of values: `low`, `low + step`, ... Not together with `log`.",
    "choices": "The values.",
}
"""What settings mean whose model says nothing, by name."""
_REPOSITORY = {page: path for path, page in PAGES.items()}
_PICTURES = "repository"
"""Folder of the site for pictures that lie outside ``docs``."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_INSIDE_NUMBERED = re.compile(r"^\d\. .*\n(?:(?:   .*)?\n)+", re.MULTILINE)
"""A numbered item with what belongs to it: indented by three as GitHub has it, while Python-Markdown wants four."""
_MARKER = re.compile(r"<!-- settings: (\w+) -->")
_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):<code>(~?)([\w.]+)</code>")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside ``docs``, and every picture that a page shows from there."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    shown = set()
    for file in files.documentation_pages():
        here = _path_of(file.src_uri)
        for picture, _, target, _ in _LINK.findall((ROOT / here).read_text(encoding="utf-8")):
            if picture and "://" not in target:
                shown.add(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))
    for path in sorted(shown):
        if not path.startswith("docs/"):
            files.append(File.generated(config, f"{_PICTURES}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables of settings and point links at pages of the site."""
    page_uri = page.file.src_uri
    markdown = _INSIDE_NUMBERED.sub(lambda found: re.sub("^(?= )", " ", found[0], flags=re.MULTILINE), markdown)
    parts = _FENCE.split(_MARKER.sub(lambda found: settings_tables(found[1]), markdown))
    return "".join(part if part.startswith("```") else _with_links(part, page_uri) for part in parts)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show reStructuredText of docstrings (``:class:`~a.b.C```, ``::`` before code) as plain text."""
    html = _ROLE.sub(lambda found: f"<code>{found[2].rpartition('.')[2] if found[1] else found[2]}</code>", html)
    return html.replace("<p>::</p>", "").replace("::</p>", ":</p>")


def _path_of(page_uri: str) -> str:
    """Path of a page's source in the repository."""
    return _REPOSITORY.get(page_uri, f"docs/{page_uri}")


def _with_links(text: str, page_uri: str) -> str:
    return _LINK.sub(lambda found: _link(found, page_uri), text)


def _link(found: re.Match[str], page_uri: str) -> str:
    picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
    if not target or "://" in target or target.startswith("mailto:"):
        return found[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_path_of(page_uri)), target))
    if path in PAGES:
        there = PAGES[path]
    elif path.startswith("docs/"):
        there = path.removeprefix("docs/")
    elif picture:
        there = f"{_PICTURES}/{path}"
    else:
        return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"
    return f"{picture}[{text}]({posixpath.relpath(there, posixpath.dirname(page_uri) or '.')}{anchor})"


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
    journaled = {"WarmStartSpec": {"proposals", "past"}}.get(model, set())
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
            rows.append(f"| `{name}` | {values} | {default} | {_cell(_meaning(name, setting))} |")
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


def _meaning(name: str, setting: dict[str, Any]) -> str:
    """Its description; of a section the first sentence about its model; of a discriminator what it selects."""
    if "description" in setting:
        return str(setting["description"])
    if "const" in setting:
        return "Selects this kind."
    if "$ref" in setting:
        described = _schema()["$defs"][setting["$ref"].rpartition("/")[2]].get("description", "")
        return str(described).partition("\n\n")[0]
    return FIELDS.get(name, "")


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
