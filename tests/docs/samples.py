"""Samples of output that the documents show, and their shape: words and layout, without the values of numbers.

A block of output follows ``<!-- printed by: COMMAND -->``, or its command in the same block or the one before it. A
line ``...`` stands for any lines that are left out, and ``...`` at the end of a line for its rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CODE = ("python", "yaml", "json", "toml", "sh", "bash", "ini", "diff")
_FENCED = re.compile(r"^( *)(?:<!-- ([^>]*) -->\n\1)?```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_TIME = r"(?:\d[\d,.]* (?:ms|s|min|h|days?)\b ?)+"
_SHORT = re.compile(rf"(?P<id>\b[0-9a-f]{{12,64}}\b)|(?P<time>{_TIME})|(?P<number>\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)")
_LEFT_OUT = "..."


@dataclass(frozen=True)
class Sample:
    """A block of output in a page."""

    page: str
    command: str
    """What prints it; empty: nothing is said of that."""
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.command}"


def samples_in(page: Path, root: Path) -> list[Sample]:
    """All blocks that are neither code nor commands alone; drawings say that they are some."""
    found = []
    text_of_page = page.read_text()
    above, end = "", 0
    for match in _FENCED.finditer(text_of_page):
        indent, comment, language, text = match.groups(default="")
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        is_next = not text_of_page[end : match.start()].strip()
        command = comment.partition("printed by: ")[2] or (above if is_next else "")
        if language == "console":
            typed = [n for n, line in enumerate(lines) if line.startswith("$ ") or (n and lines[n - 1].endswith("\\"))]
            above = command = lines[typed[-1]].removeprefix("$ ").partition("  #")[0].strip()
            lines = lines[typed[-1] + 1 :]
        if language not in _CODE and comment != "a drawing" and any(lines):
            found.append(Sample(page.relative_to(root).as_posix(), command, tuple(lines)))
        end = match.end()
        above = above if language == "console" else ""
    return found


def shape(text: str) -> str:
    """Numbers, times, digests without their values; whether a number has more digits than people read is kept.

    >>> shape("sine finished: 30 trials, 49 jobs in 38.4 s"), shape("ETA 0:00"), shape("ETA 5 min 3 s")
    ('sine finished: <number> trials, <number> jobs in <time>', 'ETA <number>:<number>', 'ETA <time>')
    >>> shape("rate = 0.11621"), shape("rate = 0.11620646334520067")
    ('rate = <number>', 'rate = <long number>')
    """

    def named(found: re.Match[str]) -> str:
        if found.lastgroup == "number":
            return "<long number>" if len(found[0]) > 12 else "<number>"
        return f"<{found.lastgroup}>" + (" " if found[0].endswith(" ") else "")

    return "\n".join(_SHORT.sub(named, line.rstrip()) for line in text.splitlines())


def is_printed(sample: Sample, printed: str, replaced: Mapping[str, str], *, exactly: bool = False) -> bool:
    """Whether a command printed what the page shows.

    Args:
        replaced: what stands in the page for what is different at each run, as paths.
        exactly: with the same numbers.
    """
    for own, shown in replaced.items():
        printed = printed.replace(own, shown)
    seen = plain if exactly else shape
    pattern = ""
    for line in sample.lines:
        if line.strip() == _LEFT_OUT:
            pattern += r"(?:.*\n)*?"
        elif line.endswith(_LEFT_OUT):
            pattern += re.escape(seen(line.removesuffix(_LEFT_OUT))) + r".*\n"
        else:
            pattern += re.escape(seen(line)) + r"\n"
    return re.fullmatch(pattern, seen(printed.strip("\n")) + "\n") is not None


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())
