"""Laws of names: a folder or file of any name is used, or refused in one line; nothing is touched beside the home."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_core.cli.app import run
from hpo_core.home import Home
from hpo_core.model.errors import StorageError
from hpo_core.model.file_urls import settled_url, sqlite_file, sqlite_url
from hpo_core.tracking.mlflow_client import open_client
from hpo_flows.command import app
from tests.conftest import World, fresh, make_spec
from tests.security.watched_folder import watched

STUDY = """
study: odd
objective: training_of_odd:train
space: {lr: {type: float, low: 0, high: 1}}
metric: {name: loss}
search: {method: random, configs: 2, max_resource: 1}
cluster: {kind: local, workers: 1}
"""
USED = [
    "a b", "a%41b", "a%2fb", "%00", "a#b", "a:b", "a;b=c", "a&token=b", "it's", 'a"b', "-a", "--help", "~", "~root",
    "$HOME",
    "e\u0301", "\u00e9", "x" * 255, "a.", "a ", " a", "sqlite:", "sqlite:///:memory:".replace("/", "\u2215"), "file:x",
    ":memory:", "a*[b]?".rstrip("?"), "[x]", "{a}", "<b>", "a\\b", "a+b", "me:pw@host", "...", "\U0001f600", "a\u2028b",
    "a\u202eb", "on", "off", "databricks", "uc", "{}", "study.yaml",
]  # fmt: skip
REFUSED = [b"a?b", b"?", b"a\nb", b"a\tb", b"a\rb", b"\x1b[31m", b"a\xff", b"\xc3", b"\xed\xa0\x80", b"\x7f"]
ODD = [*(name.encode() for name in USED), *REFUSED]
"""Names that a shell, a URL, YAML or a terminal reads as something else, and the bytes that are no text at all."""
names = st.one_of(
    st.sampled_from(ODD),
    st.text("aA1%:;?#&=@ ~$'\"\\{}[]<>.\n\u00e9", min_size=1, max_size=12).map(str.encode),
    st.binary(min_size=1, max_size=12),
).filter(lambda name: not {b"/"[0], 0} & set(name) and name not in (b".", b".."))


def is_usable(name: bytes) -> bool:
    """By the rule that docs/how-to/back-up-and-upgrade.md states."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    return "?" not in text and not any(ord(character) < 32 or ord(character) == 127 for character in text)


def contents(folder: Path, *, without: Path) -> dict[str, tuple[int, ...]]:
    """Mode, size and time of all that lies in a folder, but for what lies in one below it."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) != without and name != "__pycache__"]
        for path in [Path(place), *(Path(place, name) for name in files)]:
            seen = path.lstat()
            found[str(path)] = (stat.S_IMODE(seen.st_mode), seen.st_size if path.is_file() else 0)
    return found


@contextlib.contextmanager
def nothing_happens(folder: Path, home: Path) -> Iterator[None]:
    before = contents(folder, without=home)
    with watched(home.parent) as seen:
        yield
    assert {one.name for one in seen} <= {home.name}, seen
    assert contents(folder, without=home) == before


def said(*arguments: str) -> tuple[int, str]:
    """Exit code and errors of a command, with what the command line itself does about errors."""
    words = io.StringIO()
    given = sys.argv
    sys.argv = ["hpo", *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(words):
            run(app)
    except SystemExit as ended:
        return int(ended.code or 0), words.getvalue()
    finally:
        sys.argv = given
    return 0, words.getvalue()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a finished study, and MLflow's empty tables, which take long to make."""
    home = tmp_path_factory.mktemp("played") / "home"
    journal = Home(home).open_journal()
    world = World(3)
    world.play(fresh(make_spec(), journal, world))
    journal.close()
    open_client(Home(home).default_tracking_uri)
    return home


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


COMMANDS = (
    ("simulate", "STUDY", "--repeat", "1"),
    ("list",),
    ("status", "world"),
    ("show", "world"),
    ("audit", "world"),
    ("export", "world"),
    ("report", "world"),
    ("project", "world"),
)


def checked_commands(name: bytes, place: str, played: Path) -> None:
    with TemporaryDirectory() as made:
        top = Path(made).resolve()
        odd = top / os.fsdecode(name)
        work = odd if place == "working folder" else top / "work"
        home = odd if place == "home" else work / ".hpo"
        study = odd if place == "study file" else top / "study.yaml"
        work.mkdir(mode=0o755)
        study.write_text(STUDY)
        shutil.copytree(played, home)
        with working_in(work), nothing_happens(top, home):
            for command in COMMANDS:
                if place == "study file" and command[0] != "simulate":
                    continue
                words = ["--home=" + str(home)] if place == "home" else []
                given = [str(study) if one == "STUDY" else one for one in command]
                code, error = said(*given, *words)
                if is_usable(name):
                    assert code == 0, (command, code, error)
                else:
                    assert code == 0 or (error.startswith("error: ") and error.count("\n") == 1), (command, code, error)
                    assert code == 0 or repr(os.fsdecode(name))[1:-1] in error


@pytest.mark.parametrize(
    ("name", "place"), [(b"a%41b", "home"), (b"a\xff", "home"), (b"a\nb", "working folder"), (b"-a#", "study file")]
)
def test_commands_work_or_say_the_name_in_one_line(name: bytes, place: str, played: Path) -> None:
    checked_commands(name, place, played)


@settings(max_examples=30)
@given(name=names)
def test_a_database_is_made_where_its_url_says(name: bytes) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made).resolve() / os.fsdecode(name)
        folder.mkdir()
        file = folder / "some.db"
        if not is_usable(name):
            with pytest.raises(StorageError, match="Database .* has a"):
                sqlite_url(file)
            return
        url = sqlite_url(file)
        assert sqlite_file(url) == sqlite_file(f"{url}?timeout=3") == file
        uri = settled_url("sqlite:///file:some.db?uri=true", folder)
        for one in (url, f"{url}?timeout=3", settled_url("sqlite:///some.db", folder), uri):
            assert sqlite_file(one) == file, one
            engine = sa.create_engine(one)
            with engine.begin() as connection:
                connection.execute(sa.text("CREATE TABLE IF NOT EXISTS one (number INTEGER)"))
            engine.dispose()
            assert [path.name for path in folder.iterdir()] == ["some.db"], one
        assert list(Path(made).iterdir()) == [folder]


def test_a_working_folder_that_was_removed_is_said_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with working_in(gone):
        gone.rmdir()
        for command in (["list"], ["simulate", str(tmp_path / "study.yaml")], ["tune", "x.yaml"], ["status", "x"]):
            code, error = said(*command)
            assert code == 6 and error == (
                "error: The working folder is not there any more (No such file or directory). Change to one that is.\n"
            )
        with pytest.raises(StorageError, match="working folder is not there"):
            Home(tmp_path / "home")
    assert list(tmp_path.iterdir()) == []
