"""The nets, devices and the worked case of Paleo (TalwalkarLab/paleo, Apache-2.0), from a file of their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import result_file
from performance_model import Convolution, Elementwise, Layer, Link, Pooling, Processor

FILE = Path("paleo") / "paleo_nets_and_nin_case.json"


def load(folder: str | None) -> dict[str, Any]:
    """The file below the data folder; exits with 2 where it is absent."""
    path = result_file.data_folder(folder) / FILE
    if not path.is_file():
        print(f"No data: {path} is not there. It holds the layers of Paleo's nets. Nothing was computed.")
        raise SystemExit(2)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def layers(figures: dict[str, Any], net: str) -> tuple[Layer, ...]:
    """The layers whose work Paleo counts."""
    found: list[Layer] = []
    for row in figures["nets"][net]["layers"]:
        if row["type"] == "conv2d":
            (_, height, width, channels), (*kernel, _, filters) = row["inputs"], row["filters"]
            layer = Convolution(
                (height, width), channels, (kernel[0], kernel[1]), filters,
                stride=tuple(row["strides"][1:3]), padding=row["padding"].lower(),
            )  # fmt: skip
            assert [*layer.outputs] == row["outputs"][1:3], row["name"]
            assert layer.weights == row["num_params"], row["name"]
            found.append(layer)
        elif row["type"] == "pool2d":
            (_, height, width, channels), outputs = row["inputs"], row["outputs"][1:3]
            window = _window(height, outputs[0], row["strides"][1], row["padding"])
            found.append(Pooling((height, width), channels, (window, window), tuple(outputs)))
        elif row["type"] == "dropout":
            _, height, width, channels = row["inputs"]
            found.append(Elementwise(height * width * channels))
    return tuple(found)


def processor(figures: dict[str, Any], name: str, reached: float) -> Processor:
    row = figures["devices"][name]
    return Processor(
        clock_mhz=row["clock_mhz"],
        peak_gflops=row["peak_gflops"],
        memory_gb=row["mem_bandwidth_GBps"],
        reached=reached,
    )


def link(figures: dict[str, Any], name: str, reached: float) -> Link:
    return Link(figures["networks_Gbps"][name], reached)


def _window(size: int, output: int, stride: int, padding: str) -> int:
    """The file does not say how large the windows of pools are: 3, else 2, else the largest that fits."""
    if padding == "SAME":
        return 3
    fitting = range(size + 1 - output * stride, size + 1 - (output - 1) * stride)
    return next((window for window in (3, 2) if window in fitting), fitting[-1])
