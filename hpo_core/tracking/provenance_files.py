"""Files that reproduce a study, uploaded with its run: packages, the journal as compressed lines."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import tempfile
import zlib
from pathlib import Path

import msgspec

from hpo_core.journal.codec import encode_entry
from hpo_core.model.events import Entry
from hpo_core.security.masking import without_private_settings
from hpo_core.security.untrusted_text import json_text
from hpo_core.spec import StudySpec
from hpo_core.spec.module_source import code_files
from hpo_core.spec.study_yaml import as_yaml
from hpo_core.tracking.mlflow_client import KnownRun, RunStore

_GIT_SECONDS = 10.0


class CodeVersion(msgspec.Struct, frozen=True):
    """Code and packages that a controller runs with."""

    requirements: str
    """Packages as ``pip freeze`` lists them, below a line with Python and platform."""
    commit: str
    """Git commit that is checked out where the code lies; empty: none."""
    dirty: bool
    """Tracked files have changed since."""

    @classmethod
    def here(cls, spec: StudySpec) -> CodeVersion:
        names = {f"{found.metadata['Name']}=={found.version}\n" for found in importlib.metadata.distributions()}
        packages = "".join(sorted(names, key=str.lower))
        place = f"# Python {platform.python_version()}, {platform.platform()}\n"
        return cls(place + packages, *_git_state(spec))


def _git_state(spec: StudySpec) -> tuple[str, bool]:
    files = code_files(list(spec.functions.values()), spec.pythonpath)
    if not files:
        return "", False
    # Nothing that the repository's own settings name is started.
    git = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    try:
        done = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=files[0].path.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
            env=without_private_settings(os.environ) | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", False
    commit, _, dirty = done.stdout.strip().partition("-")
    return commit, bool(dirty)


FOLDER = "provenance"
"""In the files of a study's run."""
REQUIREMENTS = "requirements.txt"
JOURNAL = "journal.jsonl.gz"
STUDY_FILE = "study.yaml"
ENTRIES_TAG = "hpo.journal_entries"
_GZIP = 31
"""Window bits with a gzip header, in which zlib leaves the time at 0: the same entries are the same bytes."""


def study_file(spec: StudySpec) -> str:
    """The study as a YAML file. It names no folders of code: by default they are the file's and the current one."""
    plain = {key: value for key, value in spec.plain().items() if key != "pythonpath" and value not in (None, [], {})}
    return as_yaml(plain)


class ProvenanceUpload:
    """Collects the entries of one study, as ``hpo export`` writes them, and keeps its run's folder up to date."""

    def __init__(self) -> None:
        self.entries = 0
        self._packed = bytearray()
        self._packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)

    def add(self, entry: Entry) -> None:
        self._packed += self._packer.compress(json_text(encode_entry(entry)).encode() + b"\n")
        self.entries += 1

    def packed(self) -> bytes:
        """A gzip file of the lines."""
        return bytes(self._packed) + self._packer.copy().flush()

    def write(self, store: RunStore, run: KnownRun, spec: StudySpec, version: CodeVersion | None) -> None:
        """Upload what is not there yet: files first, then the tags that say so.

        Args:
            version: what the study's controller runs; None: as it was, or not known.
        """
        tags: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="hpo-provenance-") as side:
            folder = Path(side)
            if version is not None:
                (folder / REQUIREMENTS).write_text(version.requirements)
                if version.commit:
                    tags |= {"mlflow.source.git.commit": version.commit, "hpo.code_dirty": str(version.dirty).lower()}
            if run.tags.get(ENTRIES_TAG) != str(self.entries):
                (folder / JOURNAL).write_bytes(self.packed())
                (folder / STUDY_FILE).write_text(study_file(spec))
                tags[ENTRIES_TAG] = str(self.entries)
            if not any(folder.iterdir()):
                return
            store.upload(run, folder, FOLDER)
        store.log(run, tags=tags)
