"""Amounts written by hand: what they give, and everything they refuse."""

from __future__ import annotations

import math

import pytest

from hpo_core.model.devices.stated_demand import AmountExpression
from hpo_core.model.errors import SpecError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6GB", 6e9),
        ("6 GB", 6e9),
        ("1.5GiB", 1.5 * 2**30),
        (30, 30.0),
        ("30", 30.0),
        ("512MB + 4kB * width", 512e6 + 4e3 * 64),
        ("2 * width ** 2", 8192.0),
        ("min(1GB, width * depth)", 192.0),
        ("max(width, depth, 100)", 100.0),
        ("sqrt(width) + log2(width)", 14.0),
        ("-width + 100", 36.0),
        ("(width - 4) / depth", 20.0),
    ],
)
def test_values(text: str | float, expected: float) -> None:
    amount = AmountExpression(text, where="memory")
    assert math.isclose(amount.value({"width": 64, "depth": 3, "optimizer": "adam"}), expected)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "width.__class__",
        "[width][0]",
        "(lambda: 1)()",
        "open('/etc/passwd')",
        "min(*[1, 2])",
        "min(1)",
        "sqrt(1, 2)",
        "sqrt(x=1)",
        "width if depth else 3",
        "1 < 2",
        "'text'",
        "True",
        "6 GBs",
        "6XB",
        "width @ depth",
        "width; depth",
        "w := 3",
        "",
        "(" * 300,
        "-" * 60 + "1",
        "1" * 400,
        "1+" * 300 + "1",
        "1j",
        "f'{width}'",
    ],
)
def test_what_is_no_expression_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(SpecError, match="packing.demand.memory"):
        AmountExpression(text, where="packing.demand.memory")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("width", "'width' is not in the configuration"),
        ("optimizer * 2", "'optimizer' is 'adam', which is no number"),
        ("flag", "'flag' is True, which is no number"),
        ("1 / (depth - 3)", "cannot be reckoned"),
        ("(0 - depth) ** 0.5", "cannot be reckoned"),
        ("10.0 ** 10 ** depth", "cannot be reckoned"),
        ("sqrt(0 - depth)", "cannot be reckoned"),
        ("depth - 4", "it must be 0 or more"),
        ("nan", "'nan' is not in the configuration"),
    ],
)
def test_what_cannot_be_reckoned_names_setting_and_values(text: str, says: str) -> None:
    amount = AmountExpression(text, where="memory")
    with pytest.raises(SpecError, match="memory") as caught:
        amount.value({"depth": 3, "optimizer": "adam", "flag": True})
    assert says in str(caught.value)
