"""Whatever a description says, it is accepted or refused soon, in little memory, and by a SpecError alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.descriptions import ATTACKS, ROOM, SECONDS, attack, measured


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_accepted_or_refused_soon(name: str, tmp_path: Path) -> None:
    seen = measured(attack, name, str(tmp_path))
    assert seen.outcome in ("accepted", "refused"), seen
    assert seen.seconds < SECONDS and seen.megabytes < ROOM, seen
    assert len(seen.message) < 20_000, "a message repeats what was sent"
