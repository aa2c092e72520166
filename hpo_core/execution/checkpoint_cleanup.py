"""Removes checkpoint files that nothing can need any more. Which those are, ``LiveCheckpoints`` says."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpo_core.checkpoints.storage import CHECKPOINTS, all_files, attempt_files, remove
from hpo_core.model.trial import Report
from hpo_core.study import Study


class CheckpointCleanup:
    """Keeps the files of one study to what is live.

    Args:
        folder: the study's folder.
    """

    def __init__(self, study: Study, folder: Path) -> None:
        self._study = study
        self._folder = folder
        self._base = study.spec.checkpoint_base

    def remove_dead(self) -> None:
        """Remove what became superfluous since the last call."""
        for uri in self._study.checkpoints.take_dead():
            remove(self._folder, uri, self._base)

    def remove_rest_of(self, report: Report) -> None:
        """Remove files that an attempt left and no result names: it failed or came too late."""
        live = self._study.checkpoints
        if report.checkpoint is None or report.checkpoint.uri not in live:
            for uri in attempt_files(self._folder, self._base, report.trial, report.attempt):
                if uri not in live:
                    remove(self._folder, uri, self._base)

    def sweep(self) -> None:
        """Remove every checkpoint file that nothing can need, recorded or not, and folders that are empty then."""
        live = self._study.checkpoints
        for uri in all_files(self._folder, self._base):
            if uri not in live:
                remove(self._folder, uri, self._base)
        root = self._folder / CHECKPOINTS
        for folder in [] if root.is_symlink() else root.glob("*"):
            if not folder.is_symlink():
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()
