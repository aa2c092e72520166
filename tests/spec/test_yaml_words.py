"""What a study file, --set and a form field read is what YAML 1.2's core schema says; written down here from it."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import pytest
import yaml

from hpo_core.model.errors import SpecError
from hpo_core.spec.study_file import changed, read_scalar, read_yaml
from hpo_core.spec.study_yaml import as_yaml, in_one_line
from tests.conftest import make_spec

TABLE: dict[str, Any] = {
    "1:2": "1:2", "1:10": "1:10", "0:5": "0:5", "12:30:45": "12:30:45", "1:2.5": "1:2.5", "-1:30": "-1:30",
    "016": "016", "-016": "-016", "007": "007", "00": "00", "0o17": 15, "0O17": "0O17", "0x1F": 31, "0xg": "0xg",
    "0b101": "0b101", "1_000": "1_000", "1_0.5": "1_0.5", "1_000.5": "1_000.5",
    "2001-12-14": "2001-12-14", "2001-12-14t21:59:43.10-05:00": "2001-12-14t21:59:43.10-05:00", "2001-1-1": "2001-1-1",
    "0": 0, "-0": 0, "+12": 12, "-19": -19, "12e03": 12000.0, "-2E+05": -200000.0, "1e-4": 1e-4, "1.": 1.0, ".5": 0.5,
    "-.5": -0.5, "+.5e1": 5.0, "0.": 0.0, "01.5": 1.5, "1e5": 1e5, "1.e5": 1e5, "e5": "e5", "1e": "1e", ".": ".",
    "-": "-", "+": "+", ".e5": ".e5", "1.2.3": "1.2.3", "0x": "0x", "0o": "0o", "-0x1F": "-0x1F", "-0o17": "-0o17",
    ".inf": math.inf, "-.inf": -math.inf, "+.INF": math.inf, ".Inf": math.inf, ".iNf": ".iNf", "inf": "inf",
    "Infinity": "Infinity", ".nan": math.nan, ".NaN": math.nan, ".NAN": math.nan, "nan": "nan", ".Nan": ".Nan",
    "true": True, "True": True, "TRUE": True, "tRue": "tRue", "false": False, "FALSE": False,
    "yes": "yes", "no": "no", "on": "on", "off": "off", "y": "y", "n": "n", "Yes": "Yes", "OFF": "OFF",
    "null": None, "Null": None, "NULL": None, "~": None, "nULL": "nULL", "none": "none", "=": "=",
}  # fmt: skip


def core(text: str) -> Any:
    """The table of the core schema (YAML 1.2.2, 10.3.2); whole numbers with a zero before them are text here."""
    if re.fullmatch(r"null|Null|NULL|~|", text):
        return None
    if re.fullmatch(r"true|True|TRUE|false|False|FALSE", text):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return text if re.fullmatch(r"[-+]?0[0-9]+", text) else int(text)
    for pattern, base in ((r"0o[0-7]+", 8), (r"0x[0-9a-fA-F]+", 16)):
        if re.fullmatch(pattern, text):
            return int(text[2:], base)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return float(text)
    if re.fullmatch(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", text):
        return float(text.replace(".", ""))
    return text


@pytest.mark.parametrize("text", TABLE)
def test_words_and_numbers_are_those_of_yaml_1_2(text: str) -> None:
    expected = repr(TABLE[text])
    assert repr(core(text)) == expected
    if text != "-":
        assert repr(read_yaml(f"a: [{text}]")[0]) == repr({"a": [TABLE[text]]})
        assert repr(read_scalar(text)) == expected
        assert repr(changed({}, [f"constants.a={text}"])) == repr({"constants": {"a": TABLE[text]}})


def test_any_short_text_is_read_as_the_core_schema_says_and_written_so_that_it_comes_back() -> None:
    draws = random.Random(7)
    for _ in range(800):
        text = "".join(draws.choices("0123456789:_.+-eExobfniNtT", k=draws.randint(1, 7)))
        try:
            found = read_yaml(f"a: {text}")[0]
        except yaml.YAMLError:
            continue  # "- 1", "1:": other structures
        if isinstance(found, dict) and isinstance(found.get("a"), str | int | float | None):
            assert repr(found["a"]) == repr(core(text)), text
        assert read_yaml(as_yaml({"a": text}))[0] == {"a": text}
        assert read_yaml(in_one_line([text]))[0] == [text] and read_scalar(in_one_line(text)) == text


def test_ratios_reach_a_trial_as_they_are_written() -> None:
    space = read_yaml("{type: categorical, choices: [1:2, 1:10, 0:5, 016, 1_000, 2001-12-14]}")[0]
    parameter = make_spec(space={"x": space}).search_space().parameters["x"]
    assert parameter.listed() == ["1:2", "1:10", "0:5", "016", "1_000", "2001-12-14"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("low", ["1:2", "2001-12-14"])
def test_what_is_text_is_refused_as_a_number(low: str) -> None:
    with pytest.raises(SpecError, match="space.x.low"):
        make_spec(space={"x": read_yaml(f"{{type: int, low: {low}, high: 90}}")[0]})


@pytest.mark.parametrize("text", ["!!int 1:2", "!!int 016", "!!float 1:2", "!!int 1_000", "!!float 1_0.5"])
def test_a_tag_does_not_bring_old_numbers_back(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="cannot be read as"):
        read_yaml(text)
