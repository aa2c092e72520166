from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from hpo_core.model.partition_file import PartitionFile
from hpo_core.partitioning import holdings as holdings_here
from hpo_core.partitioning.holdings import Holdings


def known(name: str, content: bytes) -> PartitionFile:
    return PartitionFile(name=name, bytes=len(content), digest=hashlib.sha256(content).hexdigest())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "shards").mkdir(parents=True)
    (tmp_path / "data" / "shards" / "a").write_bytes(b"12345")
    (tmp_path / "data" / "b").write_bytes(b"678")
    return tmp_path / "data"


def test_files_that_are_there_are_held(folder: Path) -> None:
    files = [known("shards/a", b"12345"), PartitionFile(name="b"), known("c", b"9")]
    holdings = Holdings(folder, files)
    assert holdings.look() == ({"shards/a", "b"}, {})
    (folder / "c").write_bytes(b"9")
    (folder / "b").unlink()
    gone = f"Partition b was in {folder} and is there no more."
    assert holdings.look() == ({"shards/a", "c"}, {"b": gone}), "it is watched while it runs"
    folder.rename(folder.with_suffix(".away"))
    assert {name: why.count("is there no more") for name, why in holdings.look().problems.items()} == {
        "shards/a": 1, "b": 1, "c": 1,
    }  # fmt: skip
    folder.with_suffix(".away").rename(folder)
    assert holdings.look() == ({"shards/a", "c"}, {"b": gone})


def test_one_that_is_doubted_is_read_again_as_a_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size and times may be right where it cannot be read: a disk that is broken in the middle of the file."""
    holdings = Holdings(folder, [known("shards/a", b"12345"), PartitionFile(name="b")])
    assert holdings.look().names == {"shards/a", "b"}

    def broken(*_: object) -> object:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hashlib, "file_digest", broken)
    holdings.doubt("b")
    assert holdings.look().problems["b"] == f"Partition b in {folder} cannot be read (Input/output error)."
    assert "b" not in holdings.look().names, "it is read again until that succeeds"
    monkeypatch.undo()
    assert "b" in holdings.look().names


def test_a_truncated_file_is_named_with_its_size(folder: Path) -> None:
    names, problems = Holdings(folder, [known("shards/a", b"1234567"), known("b", b"678")]).look()
    assert names == {"b"}
    assert problems.keys() == {"shards/a"}
    assert (
        problems["shards/a"].endswith("copy it again.")
        and "Partition shards/a in" in problems["shards/a"]
        and "has 5 bytes where 7 belong" in problems["shards/a"]
    )


def test_another_content_is_named_with_both_digests(folder: Path) -> None:
    file = known("b", b"abc")
    names, problems = Holdings(folder, [file]).look()
    assert not names
    assert hashlib.sha256(b"678").hexdigest() in problems["b"] and str(file.digest) in problems["b"]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each digest that was computed."""
    entries = []
    real = hashlib.file_digest

    def counted(file: object, name: str) -> object:
        entries.append(name)
        return real(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return entries


def test_a_digest_is_computed_once_for_each_version(
    folder: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdings_here, "SETTLED_SECONDS", 0.0)
    holdings = Holdings(folder, [known("b", b"678")])
    for _ in range(3):
        assert holdings.look().names == {"b"}
    assert len(computed) == 1
    written, before = (folder / "b").stat().st_mtime_ns, (folder / "b").stat().st_ctime_ns
    while (folder / "b").stat().st_ctime_ns == before:  # the file system's clock has ticks
        (folder / "b").write_bytes(b"xyz")
    os.utime(folder / "b", ns=(written, written))
    assert holdings.look().names == frozenset(), "a time that was set back hides no change"
    assert len(computed) == 2
    (folder / "b").write_bytes(b"678")
    assert holdings.look() == ({"b"}, {})


def test_links_are_followed_inside_the_folder_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "d").write_bytes(b"1")
    (folder / "c").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "inside").symlink_to(folder / "b")
    (folder / "round").symlink_to(folder / "round")
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    files = [PartitionFile(name=name) for name in ("c", "linked/d", "inside", "round", "dangling")]
    names, problems = Holdings(folder, files).look()
    assert names == {"inside"}
    assert problems.keys() == {"c", "linked/d", "round"}
    assert "leads out of that folder" in problems["c"] and "leads out of that folder" in problems["linked/d"]


def test_a_folder_that_is_itself_a_link_is_a_place_like_others(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(folder)
    assert Holdings(tmp_path / "mounted", [known("b", b"678")]).look() == ({"b"}, {})


def test_nothing_is_raised_whatever_the_folder_is(folder: Path, tmp_path: Path) -> None:
    files = [PartitionFile(name="b"), PartitionFile(name="b/c")]
    assert Holdings(tmp_path / "nowhere", files).look() == (frozenset(), {})
    assert Holdings(folder / "b", files).look() == (frozenset(), {})
    assert Holdings("\0", files).look() == (frozenset(), {})
    assert Holdings(folder, files).look() == ({"b"}, {}), "below a file there is nothing"


def test_a_file_that_changes_while_it_is_read_is_looked_at_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hashlib.file_digest

    def slow(file: object, name: str) -> object:
        found = real(file, name)  # type: ignore[arg-type]
        os.utime(folder / "b")
        return found

    holdings = Holdings(folder, [known("b", b"678")])
    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "file_digest", slow)
        assert "changed while it was read" in holdings.look().problems["b"]
    assert holdings.look() == ({"b"}, {})
