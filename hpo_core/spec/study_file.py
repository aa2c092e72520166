"""Reads study files: YAML with the line of each key, for errors."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.file_urls import checked_text, working_folder
from hpo_core.model.short_text import shortened, shown
from hpo_core.model.space.parameter import flattened
from hpo_core.search.registry import settings_class
from hpo_core.spec.sent_functions import names_value, plain_name
from hpo_core.spec.study_spec import StudySpec
from hpo_core.spec.study_yaml import CORE


def split_change(text: str) -> tuple[tuple[str, ...], Any]:
    """Split a change into its keys and its value, which is JSON or else plain text.

    Raises:
        SpecError: it has no ``=``, or no key before it.

    >>> split_change("search.reduction_factor=3"), split_change("search.method=random")
    ((('search', 'reduction_factor'), 3), (('search', 'method'), 'random'))
    """
    key, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise SpecError(f"--set {shortened(text)}: write KEY=VALUE, for example search.reduction_factor=3.")
    if len(keys) > limits.DEPTH:
        raise SpecError(f"--set {shortened(text)}: a key has at most {limits.DEPTH} parts; no setting is that deep.")
    try:
        return keys, json.loads(value, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return keys, read_scalar(value.strip())


def _no_number(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity are words, as in YAML


def changed(data: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """A study's plain data with changes; the given data stays as it is.

    Another ``search.method`` keeps those settings of the search that it knows too, and drops the others.

    Raises:
        SpecError: a change is not of the form KEY=VALUE, or leads into something that is no mapping.
    """
    split = [split_change(text) for text in changes]
    for keys, value in sorted(split, key=lambda change: change[0] != ("search", "method")):  # settings after the method
        if keys == ("search", "method"):
            search = data.get("search")
            known = settings_of(value)
            kept = {name: item for name, item in search.items() if name in known} if isinstance(search, dict) else {}
            data = data | {"search": kept | {"method": value}}
        else:
            data = _replaced(data, keys, value)
    return data


def _replaced(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(keys) == 1:
        return data | {keys[0]: value}
    inner = data.get(keys[0])
    if inner is None or (keys[0] in _SWITCHES and isinstance(inner, bool)):
        inner = {}
    if not isinstance(inner, dict):
        raise SpecError(
            f"--set {'.'.join(keys)}: {keys[0]} is {shown(inner)}, which has no parts; change it as a whole."
        )
    return data | {keys[0]: _replaced(inner, keys[1:], value)}


_SWITCHES = frozenset({"packing", "share"})
"""Sections for which ``true`` stands for all defaults; a setting of one that is off turns it on."""


def settings_of(method: Any) -> set[str]:
    known = settings_class(method)
    return set() if known is None else set(known.model_fields)


def load_spec(path: str | Path, changes: Sequence[str] = ()) -> StudySpec:
    """Read a study file. Relative paths in it are relative to the file.

    Args:
        changes: made before anything is validated, as if the file said so (:mod:`hpo_core.spec.study_file`).

    Raises:
        SpecError: the file is absent, no YAML, or describes no valid study.
    """
    path = Path(path)
    data, lines = _read(path)
    if not isinstance(data, dict):
        raise SpecError(f"{path}: holds {type(data).__name__} where a mapping with the key 'study' belongs.")
    where = str(path)
    if changes:
        data, lines, where = changed(data, changes), {}, f"{path} with {', '.join(changes)}"
    spec = StudySpec.from_plain(data, where, lines)
    try:
        return with_places(spec, path.resolve().parent)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~user without a home, links in a circle
        raise SpecError(f"{where}: a path in pythonpath or data.folder leads nowhere ({error}); mend it.") from None


def _read(path: Path) -> tuple[Any, dict[tuple[Any, ...], int]]:
    # A file's data and the line of each place.
    try:
        return read_yaml(read_text(path))
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file. Give the path of a study's YAML file.") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or NUL in the path
        raise SpecError(f"{path}: cannot be read ({error}). Check the path and its permissions.") from None
    except yaml.YAMLError as error:
        problem = str(error).replace('in "<unicode string>", ', "at ")
        raise SpecError(f"{path}: is no YAML: {problem}.") from None


def with_places(spec: StudySpec, folder: Path) -> StudySpec:
    """The spec with paths made absolute.

    Args:
        folder: that relative ones are relative to: the study file's.
    """
    searched = [str((folder / Path(entry).expanduser()).resolve()) for entry in spec.pythonpath] or [
        str(folder),
        str(working_folder()),
    ]
    for entry in searched:
        checked_text(entry, "Import folder", "Rename it, or move what is in it.")
    return spec.beside(folder).model_copy(update={"pythonpath": searched})


def read_text(path: Path, what: str = "a study's YAML file", most: int = limits.FILE_BYTES) -> str:
    """The file's text. A FIFO would wait for ever, a device may never end: only files are read, and no large ones.

    Args:
        what: the file in words.
        most: bytes that it may have.

    Raises:
        OSError: it cannot be opened.
        SpecError: it is no regular file, or too large.
        UnicodeDecodeError: it is no UTF-8.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise SpecError(f"{path}: is a directory, FIFO or device. Give the path of {what}.")
        content = file.read(most + 1)
    if len(content) > most:
        raise SpecError(f"{path}: is larger than {most:,} bytes, the most that {what} may have; shorten it.")
    return content.decode()


def read_yaml(text: str) -> tuple[Any, dict[tuple[Any, ...], int]]:
    """(data, line of each place) of one YAML document of a bounded size.

    Raises:
        yaml.YAMLError: it is none, is too large or too deep, or holds a key twice; names the line.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines = _lines(node)
        return (None if node is None else loader.construct_document(node)), lines
    except RecursionError:
        raise yaml.YAMLError(f"line {loader.line + 1}: nested deeper than {limits.DEPTH} levels") from None
    except (ValueError, OverflowError, TypeError) as error:  # %YAML 1.99999..., "\UFFFFFFFF", a list as a key
        raise yaml.YAMLError(f"line {loader.line + 1}: {error}") from None
    finally:
        loader.dispose()


def read_scalar(text: str) -> Any:
    """A word, a number or a text in quotes as a study file has it; all else, and what is no YAML, is text."""
    if not text or len(text) > limits.TEXT:  # too long, and refused as such
        return text
    try:
        value, _ = read_yaml(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str) and text[0] not in "'\"":
        return text  # YAML would drop what follows " #"
    return value if isinstance(value, bool | int | float | str | None) else text


class _Loader(yaml.SafeLoader):
    """Safe YAML with the words and numbers of YAML 1.2; ``yes``, ``1:2``, ``016``, ``1_000`` and dates are texts."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            value = shown(node.value) if isinstance(node, yaml.ScalarNode) else "this"
            raise yaml.YAMLError(
                f"line {node.start_mark.line + 1}: {value} cannot be read as {kind} ({error}); put text in quotes"
            ) from None


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
for _tag, _pattern, _first in CORE:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    text, kind = str(loader.construct_scalar(node)), node.tag
    if not any(tag.endswith((":int", ":float")) and pattern.match(text) for tag, pattern, _ in CORE):
        raise ValueError("no number of YAML 1.2")
    plain = text.lower().replace(".inf", "inf").replace(".nan", "nan")
    if kind.endswith(":float"):
        return float(plain)
    return int(plain, 0)


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def _lines(document: yaml.Node | None) -> dict[tuple[Any, ...], int]:
    # Line number (from 1) of every place in a YAML document; aliases and merges are followed and count each time.
    found: dict[tuple[Any, ...], int] = {}
    waiting: list[tuple[tuple[Any, ...], yaml.Node | None]] = [((), document)]
    while waiting:
        place, node = waiting.pop()
        if len(place) > limits.DEPTH:
            raise yaml.YAMLError(
                f"line {found[place]}: nested deeper than {limits.DEPTH} levels, or an alias of itself"
            )
        inner: list[tuple[Any, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            inner = [(_key(key), key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = [(i, value, value) for i, value in enumerate(node.value)]
        for name, key, value in inner:
            at, line = (*place, name), key.start_mark.line + 1
            if at in found:
                raise yaml.YAMLError(f"line {line}: the key {shown(name)} stands twice; line {found[at]} has it")
            found[at] = line
            waiting.append((at, value))
        if len(found) > limits.VALUES:
            raise yaml.YAMLError(f"more than {limits.VALUES:,} values, aliases followed; the most there may be")
    return found


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a key is a list or a mapping; keys are text")
    return str(node.value)


_MAY_DIFFER = ("study", "cluster", "data", "pythonpath", "prefect", "tracking", "warm_start")
"""Settings that say where a study runs and is shown, and those that a study fills in when it begins."""


def differing_setting(recorded: StudySpec, given: StudySpec) -> str:
    """The first three settings that are others in the second description, with both values; empty: none.

    Functions by value are the same where they are called alike: a study goes on with the one that it keeps.
    """
    there, here = recorded.plain(), given.plain()
    found = [
        f"parameter {name} is {'there and not here' if name in there['space'] else 'here and not there'}"
        for name in sorted(there["space"].keys() ^ here["space"].keys())
    ]
    both = there["space"].keys() & here["space"].keys()
    ours, theirs = (flattened(one | {"space": {name: one["space"][name] for name in both}}) for one in (there, here))
    for name in dict.fromkeys([*ours, *theirs]):
        before, now = (_compared(one.get(name, "not set")) for one in (ours, theirs))
        if before != now and name.partition(".")[0] not in _MAY_DIFFER:
            found.append(f"{name} is {shortened(str(before))} there and {shortened(str(now))} here")
    return "; ".join(found[:3])


def _compared(value: Any) -> Any:
    return plain_name(value) if isinstance(value, str) and names_value(value) else value
