"""JournalCopy: a journal as compressed JSON lines with a digest; and back, with nothing believed."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from hpo_core.journal.codec import decode_entry, encode_entry
from hpo_core.model.errors import JournalError
from hpo_core.model.events import Entry
from hpo_core.security.untrusted_text import json_text

MAX_BYTES = 256 * 1024 * 1024
"""Largest compressed copy that is written or read: some millions of entries."""
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest entry that is read."""
MAX_TEXT_BYTES = 32 * MAX_BYTES
"""Most text that a copy is unpacked to: JSON lines shrink to a tenth, and a bomb to a thousandth."""
_GZIP = 31
"""Window bits with a gzip header, in which zlib leaves the time at 0: the same entries are the same bytes."""


class JournalCopy:
    """The entries added so far, as ``hpo export`` writes them, compressed as they come."""

    def __init__(self) -> None:
        self.entries = 0
        self._packed = bytearray()
        self._packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._hash = hashlib.sha256()

    def add(self, entry: Entry) -> None:
        """Add the next entry; beyond :data:`MAX_BYTES` only digest and count go on."""
        line = json_text(encode_entry(entry)).encode() + b"\n"
        self._hash.update(line)
        if not self.too_large:
            self._packed += self._packer.compress(line)
        self.entries += 1

    @property
    def too_large(self) -> bool:
        """Whether it has outgrown :data:`MAX_BYTES` and is no whole copy."""
        return len(self._packed) > MAX_BYTES

    @property
    def digest(self) -> str:
        """SHA-256 of the lines."""
        return self._hash.hexdigest()

    def packed(self) -> bytes:
        """A gzip file of the lines."""
        return bytes(self._packed) + self._packer.copy().flush()


def read_copy(path: Path, entries: int, digest: str) -> Iterator[Entry]:
    """The first ``entries`` entries of a copy, each decoded; the digest of their lines is compared at their end.

    A copy may be ahead of the digest that was noted with the run: it is uploaded first.

    Raises:
        JournalError: it is no gzip file, ends early, is too large, or is not what the digest was taken of.
    """
    found, total = hashlib.sha256(), 0
    try:
        with gzip.open(path, "rb") as file:
            for seq in range(entries):
                line = file.readline(MAX_LINE_BYTES + 1)
                total += len(line)
                if len(line) > MAX_LINE_BYTES or total > MAX_TEXT_BYTES:
                    raise JournalError(
                        f"{path.name}: entry {seq} passes the limit of {MAX_LINE_BYTES:,} bytes for one entry and "
                        f"{MAX_TEXT_BYTES:,} for all; this was not written by this package."
                    )
                if not line.endswith(b"\n"):
                    raise JournalError(
                        f"{path.name} ends within entry {seq} of {entries}: the upload is damaged. Where the study's "
                        "home still is, `hpo project NAME --rebuild` uploads it again."
                    )
                found.update(line)
                yield decode_entry(line)
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(
            f"{path.name} cannot be unpacked ({error}): the upload is damaged. Where the study's home still is, "
            "`hpo project NAME --rebuild` uploads it again."
        ) from error
    if found.hexdigest() != digest:
        raise JournalError(
            f"{path.name} is not what was uploaded: its first {entries} entries have the SHA-256 "
            f"{found.hexdigest()[:12]}..., the run notes {digest[:12]}... Nothing was imported. Where the study's home "
            "still is, `hpo project NAME --rebuild` uploads it again."
        )
