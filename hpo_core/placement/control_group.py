"""The control groups (cgroup v2) that this process is in, whose limits all hold."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups() -> list[Path]:
    """Folders of the group of this process and of those above it, up to the root that is seen here."""
    try:
        line = _MEMBERSHIP.read_text().rpartition("0::")[2].split("\n", 1)[0]
    except OSError:
        return [_ROOT]
    parts = [part for part in line.split("/") if part]
    if ".." in parts:  # the group lies outside what this container sees
        parts = []
    return [_ROOT.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
