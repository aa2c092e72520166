"""Pages that show another library's code on the left and ours on the right: each side as one script."""

from __future__ import annotations

import re
from pathlib import Path

_PAIR = re.compile(r'<div class="grid" markdown>\n\n```python\n(.*?)```\n\n```python\n(.*?)```\n\n</div>', re.DOTALL)
_BOTH = re.compile(r"<!-- both sides -->\n```python\n(.*?)```", re.DOTALL)


def scripts(page: Path) -> tuple[str, str]:
    text = page.read_text()
    pairs = _PAIR.findall(text)
    assert len(pairs) == text.count('<div class="grid"'), f"{page}: a grid holds two blocks of Python"
    both = "\n".join(_BOTH.findall(text))
    left, right = ("\n".join([both, *side]) for side in zip(*pairs, strict=True))
    return left, right
