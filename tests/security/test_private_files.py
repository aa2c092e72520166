"""Folders 0700, files 0600, no links, no foreign owners: the pieces that everything below a home is written with."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from hpo_core.model.errors import StorageError
from hpo_core.security.private_files import check_folder, open_private, private_folder, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_new_files_are_private_and_open_ones_become_private(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir(mode=0o755)
    wide.chmod(0o777)
    inner = private_folder(wide / "a" / "b", below=wide)
    assert [mode(path) for path in (wide, wide / "a", inner)] == [0o700] * 3
    old = inner / "log"
    old.write_text("before ")
    old.chmod(0o644)
    with open_private(old, "ab") as file:
        file.write(b"after")
    write_private(inner / "new", b"content")
    assert old.read_text() == "before after" and (inner / "new").read_bytes() == b"content"
    assert [mode(path) for path in inner.iterdir()] == [0o600] * 2
    with open_private(old, "wb") as file:
        file.write(b"anew")
    assert old.read_text() == "anew"


def test_links_are_refused_and_their_targets_stay(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (victim / "key").write_text("secret")
    home = private_folder(tmp_path / "home")
    (home / "studies").symlink_to(victim)
    (home / "file").symlink_to(victim / "key")
    with pytest.raises(StorageError, match="studies is a symbolic link"):
        private_folder(home / "studies" / "x", below=home)
    with pytest.raises(StorageError, match="studies is a symbolic link"):
        check_folder(home / "studies" / "x", below=home)
    modes: list[Literal["rb", "wb", "ab"]] = ["rb", "wb", "ab"]
    for how in modes:
        with pytest.raises(StorageError, match="file is a symbolic link"):
            open_private(home / "file", how)
    write_private(home / "file", b"ours")
    assert (home / "file").read_bytes() == b"ours" and not (home / "file").is_symlink()
    assert (victim / "key").read_text() == "secret" and list(victim.iterdir()) == [victim / "key"]
    assert mode(victim) == 0o755


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(StorageError):
        open_private(tmp_path / "log", "ab")
    with pytest.raises(StorageError, match="no regular file"):
        open_private(tmp_path / "log", "rb")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_files_of_another_user_are_refused(open_folder: Path) -> None:
    foreign = open_folder / "foreign"
    foreign.mkdir()
    (foreign / "log").write_text("theirs")
    for path in (foreign, foreign / "log"):
        os.chown(path, 4321, 4321)
    (foreign / "log").chmod(0o666)
    script = (
        "import os, sys; os.setgroups([]); os.setgid(4322); os.setuid(4322)\n"
        "from hpo_core.model.errors import StorageError\n"
        "from hpo_core.security.private_files import open_private, private_folder\n"
        "for call in (lambda: private_folder(sys.argv[1]), lambda: open_private(sys.argv[1] + '/log', 'ab')):\n"
        "    try: call()\n"
        "    except StorageError as error: print(error)\n"
    )
    # Imported before the change of user: the interpreter may lie where that user cannot look.
    script = "import hpo_core.model.errors, hpo_core.security.private_files\n" + script
    done = subprocess.run(
        [sys.executable, "-c", script, str(foreign)], capture_output=True, text=True, timeout=600, check=True
    )
    said = done.stdout.splitlines()
    assert len(said) == 2 and all("belongs to user 4321" in line for line in said), done
    assert (foreign / "log").read_text() == "theirs"
