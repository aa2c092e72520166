"""CodeVersion: what code and which packages a study is trained with, as found when its controller starts."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpo_core.security.masking import without_credentials, without_private_settings
from hpo_core.spec.module_source import CodeFile, code_files

_GIT_SECONDS = 10.0


class FileDigest(msgspec.Struct, frozen=True):
    """One file of the code."""

    path: str
    """Relative to the folder that it is imported from."""
    sha256: str


class GitState(msgspec.Struct, frozen=True):
    """The commit that is checked out where the code lies."""

    commit: str
    dirty: bool
    """Tracked files have changed since, or a file of the code is not tracked."""


class CodeVersion(msgspec.Struct, frozen=True):
    """Code and packages."""

    functions: tuple[str, ...]
    digest: str
    """Of all files' paths and digests."""
    files: tuple[FileDigest, ...]
    python: str
    platform: str
    requirements: str
    """Name of the file with the packages, in the form of ``pip freeze``."""
    git: GitState | None = None


def find_code_version(functions: Sequence[str], folders: Sequence[str]) -> tuple[CodeVersion, str]:
    """The code version of now, and the text of its ``requirements`` file."""
    files = code_files(functions, folders)
    digests = digests_of(files)
    packages = installed_packages()
    version = CodeVersion(
        functions=tuple(functions),
        digest=total_digest(digests),
        files=digests,
        python=platform.python_version(),
        platform=platform.platform(),
        requirements=f"requirements-{hashlib.sha256(packages.encode()).hexdigest()[:8]}.txt",
        git=git_state(files),
    )
    return version, packages


def digests_of(files: Sequence[CodeFile]) -> tuple[FileDigest, ...]:
    """The files' digests; one that cannot be read now has none."""
    found = []
    for file in files:
        try:
            found.append(FileDigest(file.name, hashlib.sha256(file.path.read_bytes()).hexdigest()))
        except OSError:
            found.append(FileDigest(file.name, ""))
    return tuple(found)


def total_digest(files: Sequence[FileDigest]) -> str:
    """One digest of all files."""
    text = json.dumps([[file.path, file.sha256] for file in files])
    return hashlib.sha256(text.encode()).hexdigest()


def installed_packages() -> str:
    """What is installed in this environment, as ``pip freeze`` says it.

    A package that was not installed from a registry has its place, without credentials.
    """
    lines: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        if not name:  # left by an uninstall that was cut short
            continue
        line = f"{name}=={package.version}"
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
            place = json.loads(package.read_text("direct_url.json") or "null")
            if place is not None:
                commit = place.get("vcs_info", {}).get("commit_id", "")
                url = without_credentials(place["url"])
                line = f"# editable, {line}: {url}" if place.get("dir_info", {}).get("editable") else line
                line = f"{name} @ git+{url}@{commit}" if commit else line
        lines.setdefault(name.lower(), line)
    return "".join(f"{lines[name]}\n" for name in sorted(lines))


def git_state(files: Sequence[CodeFile]) -> GitState | None:
    """Commit and cleanness of the repository that holds the first file; None where there is none, or no git."""
    if not files:
        return None
    folder = files[0].path.parent
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    untracked = _git(folder, "ls-files", "--others", "--", *(str(file.path) for file in files))
    return GitState(commit.strip(), dirty=changed != "" or untracked != "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of git; None where it fails. What a repository's own settings would start is switched off."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
            env=without_private_settings(os.environ) | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout
