"""Writes archives of arrays that are the same, byte by byte, for the same arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


def write_npz(arrays: Mapping[str, NDArray[Any]], file: BinaryIO) -> None:
    """Write arrays as ``numpy.savez`` does, uncompressed and without pickle."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():  # ZipInfo's own date is fixed; that of a file would be now
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
