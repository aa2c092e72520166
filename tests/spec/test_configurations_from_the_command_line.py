"""Configurations that ``hpo tune --start-with`` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.spec.study_file import read_configurations


def test_inline_and_files_of_yaml_and_json(tmp_path: Path) -> None:
    assert read_configurations("{lr: 1e-3, optimizer: {name: sgd}}") == [{"lr": 0.001, "optimizer": {"name": "sgd"}}]
    assert read_configurations('[{"lr": 0.1}, {"lr": 0.2}]') == [{"lr": 0.1}, {"lr": 0.2}]
    (tmp_path / "first.json").write_text('{"lr": 0.5}')
    assert read_configurations(str(tmp_path / "first.json")) == [{"lr": 0.5}]
    (tmp_path / "first.yaml").write_text("- lr: 0.5\n- lr: 0.25\n")
    assert read_configurations(str(tmp_path / "first.yaml")) == [{"lr": 0.5}, {"lr": 0.25}]


@pytest.mark.parametrize(
    ("text", "says"),
    [("{lr: ", "is no YAML"), ("[1, 2]", "a configuration or a list of them belongs"), ("none.yaml", "no such file")],
)
def test_anything_else_is_refused_with_the_cure(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read_configurations(text)
