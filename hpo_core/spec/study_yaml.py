"""YAML of study files: words and numbers of YAML 1.2; texts that could be taken for something else are quoted."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
CORE = (
    (f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    (f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (f"{_TAG}int", re.compile(r"^(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        f"{_TAG}float",
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.?[0-9]+[eE][-+]?[0-9]+)"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    ),
)
"""Tag, pattern and first letters of what YAML 1.2 (core schema) does not take for text.

One exception: 016 is text. YAML 1.1 reads it as 14, YAML 1.2 as 16.
"""


class Dumper(yaml.SafeDumper):
    """YAML that study files and other readers take for the same data."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in CORE:
    Dumper.add_implicit_resolver(_tag, _pattern, _first)


def as_yaml(data: dict[str, Any]) -> str:
    """Data as a YAML document that :func:`hpo_core.spec.study_file.read_yaml` reads as it was.

    >>> as_yaml({"lr": 1e-05, "text": "1e-5"})
    "lr: 1.0e-05\\ntext: '1e-5'\\n"
    """
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))


def in_one_line(value: Any) -> str:
    """A value as YAML in one line.

    >>> in_one_line(["size", "1", {"lr": 1e-05}])
    "[size, '1', {lr: 1.0e-05}]"
    """
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return str(text).removesuffix("\n").removesuffix("\n...")
