"""Pages of reference and explanation: their tables come from the code, and their examples run."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.main import get_command

from hpo_core import Study, StudySpec
from hpo_flows.command import app
from tests.conftest import make_spec
from tests.docs.test_docs import GUIDE, ROOT

DOCS = ROOT / "docs"
PAGES = [*sorted((DOCS / "reference").glob("*.md")), *sorted((DOCS / "explanation").glob("*.md"))]
STUDY_FILE = (DOCS / "reference" / "study-file.md").read_text()
BLOCK = re.compile(r"^(?:<!-- ([^>]*) -->\n)?```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The hook that writes the tables, loaded as mkdocs does."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "hooks" / "reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_section_of_the_study_file_has_a_table(reference: ModuleType) -> None:
    tables = set(re.findall(r"<!-- settings: (\w+) -->", STUDY_FILE))
    assert tables == {"study"} | {name for name in StudySpec.model_fields if reference.models_of(name)} - {"metrics"}


def test_exit_codes_are_those_of_the_code(reference: ModuleType) -> None:
    from hpo_core.cli.studies import AUDIT_DIFFERS
    from hpo_core.model import errors
    from hpo_flows.study_run import launch

    for kind, code in (("SpecError", 2), ("StudyExistsError", 3), ("StudyNotFoundError", 4), ("StudyBusyError", 5),
                       ("StorageError", 6), ("JournalError", 6)):  # fmt: skip
        assert getattr(errors, kind).exit_code == code
    assert (launch.HALTED, AUDIT_DIFFERS, launch.MOST_FAILED, launch.INTERRUPTED) == (7, 8, 9, 130)
    listed = re.findall(r"^\| (\d+) \| \w", reference.generated("exit codes"), re.MULTILINE)
    assert listed == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "130"]


def test_journal_events_have_every_kind_with_its_fields(reference: ModuleType) -> None:
    from hpo_core.model import events

    page = reference.generated("events")
    for kind in (*events.Stimulus.__args__, *events.Event.__args__):
        section = page.split(f"### {kind.__name__}\n")[1].split("\n### ")[0]
        assert list(kind.__struct_fields__) == re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE), kind


def test_a_variable_without_a_description_fails_the_build(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "| `HPO_HOME` | folder of journal" in reference.generated("environment")
    new = tmp_path / "new.py"
    new.write_text('os.environ["HPO_NEW_THING"]\n')
    monkeypatch.setattr(reference, "CODE", [*reference.CODE, new])
    with pytest.raises(Exception, match="HPO_NEW_THING has no description: write a line"):
        reference.generated("environment")


def test_a_setting_without_a_description_fails_the_build(
    reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = StudySpec.model_json_schema()
    del schema["properties"]["seed"]["description"]
    monkeypatch.setattr(reference, "_schema", lambda: schema)
    with pytest.raises(Exception, match="The setting seed has no description"):
        reference.generated("settings: study")


def test_every_search_of_the_table_can_begin() -> None:
    table = STUDY_FILE.split("<!-- searches -->")[1].split("\n\n")[0]
    found = re.findall(r"`(\{method: .*?\})` \|", table)
    assert len(found) >= 10
    space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in ("lr", "dropout")}
    for text in found:
        assert Study.create(make_spec(search=yaml.safe_load(text), space=space)).set_capacity(2)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(comment above, language, text) of each block of a page."""
    return BLOCK.findall(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_a_page_runs(page: Path) -> None:
    """A part of a study file is one that a study takes; Python parses, and prints what is shown below it."""
    code, space = "", {}
    for comment, language, text in blocks(page):
        if language == "python":
            code = text
            ast.parse(text)
        elif language == "yaml":
            part = yaml.safe_load(text)
            space = space or {name: part[name] for name in part if name == "space" and "study" not in part}
            StudySpec.from_plain(part) if "study" in part else make_spec(**{"objective": "train:train"} | space | part)
        elif language == "text":
            assert comment == "printed by: these lines", f"{page}: {text}"
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, page.name, "exec", dont_inherit=True), {})
            assert printed.getvalue() == text


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_have_these_options(page: Path) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for _, language, text in blocks(page):
        for line in text.splitlines() if language == "console" else ():
            named = re.match(r"\$ hpo ([a-z]+)", line)
            if named and named[1] in commands:
                known = {name for p in commands[named[1]].params for name in (*p.opts, *p.secondary_opts)}
                assert set(re.findall(r" (--[a-z-]+)", line)) <= known | {"--help"}, f"{page}: {line}"
