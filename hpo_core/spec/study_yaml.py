"""YAML of study files: numbers as people write them, and texts that could be taken for something else in quotes."""

from __future__ import annotations

import re
from typing import Any

import yaml

FLOAT = re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
"""Numbers such as ``1e-4``, which YAML 1.1 takes for text."""


class _Dumper(yaml.SafeDumper):
    """YAML that study files and other readers take for the same data."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write what occurs twice twice."""
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


def as_yaml(data: dict[str, Any]) -> str:
    """Data as a YAML document that :func:`hpo_core.spec.study_file.read_yaml` reads as it was.

    >>> as_yaml({"lr": 1e-05, "text": "1e-5"})
    "lr: 1.0e-05\\ntext: '1e-5'\\n"
    """
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
