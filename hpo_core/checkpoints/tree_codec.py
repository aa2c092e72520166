"""Encodes trees of tensors, arrays and plain values as safetensors: a JSON structure and named byte blocks; and back.

The set of types is closed, so loading a checkpoint runs no code from it. Plain scalars and lists are written as they
are; everything else is an object with one tag.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpo_core.model.errors import CheckpointError

STORED_TYPES = {
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)},
    "bfloat16": "BF16",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""Names of types in the safetensors format, by their names in torch, and in numpy but for complex numbers."""

TYPE_NAMES = {stored: name for name, stored in STORED_TYPES.items()}
"""Names of types in torch and numpy, by their names in the safetensors format."""
_ITEM_BYTES = {stored: int(found[0]) // 8 for stored, name in TYPE_NAMES.items() if (found := re.findall(r"\d+", name))}


def stored_size(dtype: str, shape: Sequence[int]) -> int:
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"shape {shape!r}")
    return _ITEM_BYTES.get(dtype, 1) * math.prod(shape)


def empty_array(dtype: str, shape: Sequence[int]) -> tuple[np.ndarray[Any, Any], memoryview]:
    array = np.empty(shape, TYPE_NAMES[dtype])
    return array, array.reshape(-1).view(np.uint8).data


def empty_tensor(dtype: str, shape: Sequence[int]) -> tuple[Any, memoryview]:
    import torch

    tensor = torch.empty(shape, dtype=getattr(torch, TYPE_NAMES[dtype]))
    return tensor, tensor.reshape(-1).view(torch.uint8).numpy().data


class Block(NamedTuple):
    """One tensor or array as stored in the file."""

    dtype: str
    """Type name in the safetensors format."""
    shape: tuple[int, ...]
    data: Any
    """Bytes of the array, flat, as uint8; of a tensor as a tensor, where it lies."""


class Flattener:
    """Encodes one tree: :meth:`flatten` returns the JSON structure, ``blocks`` collects the bytes.

    Tensors that share their memory share a block, so tied weights stay tied.
    """

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self._tied: dict[tuple[Any, ...], str] = {}

    def flatten(self, value: Any, path: str = "") -> Any:
        """Return the JSON structure of ``value``; ``path`` is its place in the tree, for names and messages.

        Raises:
            CheckpointError: the tree contains a value of an unsupported type.
        """
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind is list:
            return self._sequence(value, path)
        if kind is tuple:
            return {"tuple": self._sequence(value, path)}
        if kind is dict:
            if all(type(key) is str for key in value):
                return {"dict": {key: self.flatten(item, f"{path}/{key}") for key, item in value.items()}}
            return {"items": self._items(value, path)}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if kind is OrderedDict:  # a module's state_dict keeps its version numbers beside the items
            return {
                "ordered": self._items(value, path),
                "metadata": self.flatten(getattr(value, "_metadata", None)),
            }
        if kind is Counter:
            return {"counter": self._items(value, path)}
        if kind is np.ndarray and value.dtype.kind in "biufcmM":
            return self._array(value, path)
        if isinstance(value, np.generic) and value.dtype.kind in "biufcmM":
            return {"scalar": value.dtype.str, "hex": value.tobytes().hex()}
        torch = sys.modules.get("torch")
        if torch is not None:
            if kind is torch.Size:
                return {"size": list(value)}
            if kind in (torch.Tensor, torch.nn.Parameter) and _is_dense(value):
                return self._tensor(value, path)
        raise CheckpointError(
            f"Checkpoint value at {path.lstrip('/')!r} is a {kind.__module__}.{kind.__qualname__} "
            f"({_brief(value)}); "
            "a checkpoint holds dense tensors, numpy arrays, numbers, strings, bytes, None, tuples, lists and "
            "dicts. "
            "Leave it out of state_dict() and rebuild it before trial.track(), or turn it into one of these."
        )

    def _sequence(self, value: Sequence[Any], path: str) -> list[Any]:
        if set(map(type, value)) == {int} and min(value) >= -(2**63) and max(value) < 2**63:
            return list(value)  # the state of Python's generator has 625 of them
        return [self.flatten(item, f"{path}/{i}") for i, item in enumerate(value)]

    def _items(self, value: dict[Any, Any], path: str) -> list[Any]:
        return [[self.flatten(k, f"{path}/key {k!r}"), self.flatten(v, f"{path}/{k}")] for k, v in value.items()]

    def _array(self, value: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        flat = np.array(value, order="C").reshape(-1).view(np.uint8)
        is_little = value.dtype.str[0] in "<|" and value.dtype.kind != "c"
        native = STORED_TYPES.get(value.dtype.name) if is_little else None
        if native:
            return {"array": self._store(path, Block(native, value.shape, flat))}
        raw = self._store(path, Block("U8", (flat.size,), flat))
        return {"array": raw, "dtype": value.dtype.str, "shape": list(value.shape)}

    def _tensor(self, value: Any, path: str) -> dict[str, Any]:
        import torch

        key = (value.data_ptr(), value.device, value.dtype, value.shape, value.stride(), value.is_conj())
        dtype = str(value.dtype).removeprefix("torch.")
        name = self._tied.get(key) if value.numel() else None
        native = STORED_TYPES.get(dtype)
        if name is None:
            plain = value.detach()
            if value.is_conj() or value.is_neg() or not value.is_contiguous():
                plain = plain.cpu().resolve_conj().resolve_neg().contiguous()  # not with memory of a GPU
            flat = plain.reshape(-1).view(torch.uint8)
            block = Block(native, tuple(value.shape), flat) if native else Block("U8", (len(flat),), flat)
            name = self._tied[key] = self._store(path, block)
        return {"tensor": name} if native else {"tensor": name, "dtype": dtype, "shape": list(value.shape)}

    def _store(self, path: str, block: Block) -> str:
        name = path.lstrip("/").encode("utf-8", "replace").decode() or "value"
        while name in self.blocks or name == "__metadata__":
            name += "'"
        self.blocks[name] = block
        return name


def unflatten(node: Any, array: Callable[[str], Any], tensor: Callable[[str], Any]) -> Any:
    """Decode a structure that :meth:`Flattener.flatten` returned.

    Args:
        node: the JSON structure.
        array: returns the numpy array of a block, by its name.
        tensor: returns the torch tensor of a block, by its name.

    Raises:
        CheckpointError: the structure contains an unknown tag.
    """

    def build(node: Any) -> Any:
        if not isinstance(node, dict):
            if not isinstance(node, list) or set(map(type, node)) == {int}:
                return node
            return [build(item) for item in node]
        tag = next(iter(node), "")
        body: Any = node.get(tag)
        match tag:
            case "dict":
                return {key: build(item) for key, item in body.items()}
            case "tuple":
                return tuple(build(item) for item in body)
            case "items":
                return {build(key): build(item) for key, item in body}
            case "ordered":
                ordered: OrderedDict[Any, Any] = OrderedDict((build(key), build(item)) for key, item in body)
                if node["metadata"] is not None:
                    ordered._metadata = build(node["metadata"])  # type: ignore[attr-defined]
                return ordered
            case "counter":
                return Counter({build(key): build(item) for key, item in body})
            case "int":
                return int(body, 16)
            case "float":
                return struct.unpack(">d", bytes.fromhex(body))[0]
            case "bytes":
                return base64.b64decode(body)
            case "scalar":
                return np.frombuffer(bytes.fromhex(node["hex"]), np.dtype(body))[0]
            case "array":
                raw = array(body)
                return raw.view(np.dtype(node["dtype"])).reshape(node["shape"]) if "dtype" in node else raw
            case "tensor" | "size":
                import torch

                if tag == "size":
                    return torch.Size(body)
                raw = tensor(body)
                return raw.view(getattr(torch, node["dtype"])).reshape(node["shape"]) if "dtype" in node else raw
        raise CheckpointError(f"Checkpoint structure has the unknown tag {tag!r}; a newer version wrote it: upgrade.")

    return build(node)


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"its repr raises {type(error).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _is_dense(tensor: Any) -> bool:
    return str(tensor.layout) == "torch.strided" and not tensor.is_quantized and not tensor.is_meta


def memory_of(part: Any) -> memoryview:
    """Bytes of a part of a file; those of a tensor on a GPU are copied from there."""
    plain: Any = part if isinstance(part, bytes | memoryview | np.ndarray) else part.cpu().numpy()
    return memoryview(plain).cast("B")


def file_parts(metadata: Mapping[str, str], blocks: Mapping[str, Block]) -> list[Any]:
    """A safetensors file in parts: 8 bytes of length and the JSON header, then the data of the blocks.

    Blocks with larger items come first, so each of them is aligned.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    ordered = sorted(blocks.items(), key=lambda item: -(len(item[1].data) // max(1, math.prod(item[1].shape))))
    for name, block in ordered:
        end = offset + len(block.data)
        header[name] = {"dtype": block.dtype, "shape": block.shape, "data_offsets": [offset, end]}
        offset = end
    body = json.dumps(header, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    head = len(body).to_bytes(8, "little") + body
    return [head, *(block.data for _, block in ordered)]


def tree_parts(tree: Any, **metadata: str) -> list[Any]:
    """A tree as a safetensors file in parts; equal trees give equal bytes. Tensors stay where they are.

    Raises:
        CheckpointError: the tree contains a value that cannot be stored.
    """
    flattener = Flattener()
    try:
        structure = flattener.flatten(tree)
    except RecursionError as error:
        raise CheckpointError(
            "Checkpoint state is nested too deeply, or contains itself. Cure: let state_dict() return a flat dict."
        ) from error
    text = json.dumps(structure, allow_nan=False, separators=(",", ":"))
    return file_parts({**metadata, "hpo_tree": text}, flattener.blocks)


def tree_digest(tree: Any) -> str:
    """SHA-256 of a tree, hexadecimal, without a copy of its tensors; see :func:`tree_parts`."""
    digest = hashlib.sha256()
    for part in tree_parts(tree):
        digest.update(memory_of(part))
    return digest.hexdigest()


def tree_bytes(tree: Any) -> bytes:
    """A tree as bytes, for ranks that send each other their states; see :func:`tree_parts`."""
    return b"".join(map(memory_of, tree_parts(tree)))


def tree_of(data: bytes) -> Any:
    """Inverse of :func:`tree_bytes`; needs torch, runs no code from the bytes.

    Raises:
        CheckpointError: the bytes are no such tree.
    """
    from safetensors.torch import load

    try:
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        return unflatten(json.loads(metadata["hpo_tree"]), lambda name: tensors[name].numpy(), tensors.__getitem__)
    except Exception as error:  # whatever json, numpy and torch make of damaged bytes
        raise CheckpointError(f"A state cannot be decoded: {type(error).__name__}: {error}.") from error
