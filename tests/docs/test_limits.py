"""The page of limits says what the code enforces."""

from __future__ import annotations

import re
from pathlib import Path

from hpo_core.model import limits

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()


def test_every_limit_is_listed_with_its_value() -> None:
    listed = dict(re.findall(r"\| `([A-Z_]+)` \| (.+?) \|", PAGE))
    internal = {"ERROR_LINES", "SHOWN"}
    known = {name for name in vars(limits) if name.isupper()} - internal
    assert listed.keys() == known
    for name in known - {"FILE_BYTES", "LARGEST_INTEGER", "SECONDS", "STEPS", "RESOURCE", "SAMPLER_ARGUMENTS"}:
        assert listed[name] == f"{getattr(limits, name):,}", name
    assert listed["FILE_BYTES"] == f"{limits.FILE_BYTES // 1024} KiB"
    assert limits.STEPS == limits.RESOURCE == 2**53 and listed["STEPS"] == listed["RESOURCE"] == "2^53"
    assert limits.LARGEST_INTEGER == 2**63 - 1 and limits.SECONDS == 1e9
    assert listed["SAMPLER_ARGUMENTS"] == ", ".join(f"{value:,}" for value in limits.SAMPLER_ARGUMENTS.values())
