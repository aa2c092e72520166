"""A study file: YAML read with the line of each key, so that an error can name it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hpo_core.errors import SpecError
from hpo_core.spec.cluster import AddressClusterSpec
from hpo_core.spec.study import StudySpec


def load_spec(path: str | Path, changes: Sequence[str] = ()) -> StudySpec:
    """Read a study file. Relative paths in it are relative to the file.

    Args:
        changes: made before anything is validated, as if the file said so (:mod:`hpo_core.spec_changes`).

    Raises:
        SpecError: the file is absent, no YAML, or describes no valid study.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        lines = _lines(yaml.compose(text, Loader=_Loader))
        data = yaml.load(text, Loader=_Loader)
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file. Give the path of a study's YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read ({error}). Check the path and its permissions.") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: is no YAML ({error}). Mend the place it names.") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: holds {type(data).__name__} where a mapping with the key 'study' belongs.")
    where = str(path)
    if changes:
        from hpo_core.spec_changes import changed

        data, lines, where = changed(data, changes), {}, f"{path} with {', '.join(changes)}"
    spec = StudySpec.from_plain(data, where, lines)
    folder = path.resolve().parent
    if spec.tracking.mlflow and spec.tracking.mlflow.startswith("sqlite:///"):
        database = folder / Path(spec.tracking.mlflow.removeprefix("sqlite:///")).expanduser()
        tracking = spec.tracking.model_copy(update={"mlflow": f"sqlite:///{database}"})
        spec = spec.model_copy(update={"tracking": tracking})
    if isinstance(spec.cluster, AddressClusterSpec):
        spec = spec.model_copy(update={"cluster": spec.cluster.beside(folder)})
    searched = [str((folder / Path(entry).expanduser()).resolve()) for entry in spec.pythonpath] or [
        str(folder),
        str(Path.cwd()),
    ]
    return spec.model_copy(update={"pythonpath": searched})


class _Loader(yaml.SafeLoader):
    """Safe YAML in which ``1e-4`` is a number (YAML 1.1 wants ``1.0e-4``) and yes, no, on, off are words."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)


def _lines(node: yaml.Node | None, at: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    """Line number (from 1) of every key in a YAML document."""
    found: dict[tuple[Any, ...], int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, key.value)
            if place in found:
                raise yaml.YAMLError(
                    f"line {key.start_mark.line + 1}: the key {key.value!r} stands twice; line {found[place]} has it"
                )
            found[place] = key.start_mark.line + 1
            found.update(_lines(value, place))
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            found[(*at, i)] = value.start_mark.line + 1
            found.update(_lines(value, (*at, i)))
    return found
