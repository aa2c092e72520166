"""Lists of devices: what they mean, and what is wrong with one."""

from __future__ import annotations

import pytest

from hpo_core.model.devices.inventory import Capacity
from hpo_core.model.errors import SpecError
from hpo_core.simulation.device_list import UNLIMITED_CORES, parse_devices


def read(text: str) -> list[tuple[str, str, str, float, int]]:
    found = []
    for device in parse_devices(text):
        assert isinstance(device.capacity, Capacity)
        one = device.capacity
        found.append((device.name, one.node, one.architecture, one.memory / 1e9, one.cores))
    return found


def test_gpus_fill_computers_of_eight_or_as_many_as_are_said() -> None:
    nodes = [node for _, node, *_ in read("9xA100-80GB, 3xH100-94GB/2")]
    assert nodes == ["node-0"] * 8 + ["node-1"] + ["node-2"] * 2 + ["node-3"]
    assert read("1xA100-40GB,1xA100-80GB") == [
        ("A100-0", "node-0", "A100", 40.0, UNLIMITED_CORES),
        ("A100-1", "node-1", "A100", 80.0, UNLIMITED_CORES),
    ]


def test_names_with_dashes_slices_and_cores() -> None:
    assert read("1xRTX-A6000-48GB")[0][2] == "RTX-A6000"
    assert read("1xA100-1g.10gb-9.5GB")[0][2:4] == ("A100-1g.10gb", 9.5)
    assert read("2xA100-64cores-80GB")[1][4] == 64_000 == read("2xA100-80GB-64cores")[1][4]
    assert read("1xCPU-16cores-64GiB")[0][3] == pytest.approx(68.72, abs=0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4xA100-80GB,2H100-80GB", r"'2H100-80GB' \(entry 2 of 2\) does not begin with a count"),
        ("A100-80GB", "does not begin with a count"),
        ("-3xA100-8GB", "does not begin with a count"),
        ("4 x A100-80GB", "does not begin with a count"),
        ("", "is empty"),
        ("4xA100-80GB,", r"entry 2 of 2\) is empty"),
        ("4xA100", "does not say how much memory"),
        ("4xA100-80Gb", "'80Gb' is no amount of memory, as 80GB is"),
        ("4xA100-80", "'80' is no amount of memory"),
        ("1x-80GB", "has no name"),
        ("0xA100-80GB", "a count of '0' must be from 1 to 1,000"),
        ("999999999999999999999xA100-80GB", "must be from 1 to 1,000"),
        ("600xA100-80GB,600xH100-80GB", "1,200 devices in all, and at most 1,000"),
        ("1xA100-0GB", "from 1MB to 100TB"),
        ("1xA100-900TB", "from 1MB to 100TB"),
        ("1xA100-99999999999999999999999999GB", "from 1MB to 100TB"),
        ("8xA100-80GB/0", "must be from 1 to"),
        ("8xA100-80GB/four", "how many of them are in one computer"),
        ("2xCPU-64GB", "does not say how many cores"),
        ("2xCPU-16cores-64GB/2", "is a whole computer"),
        ("2xCPU-0cores-64GB", "must be from 1 to 10,000"),
    ],
)  # fmt: skip
def test_a_list_with_a_mistake_says_which_entry_and_how_to_write_it(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        parse_devices(text)
    assert "--devices" in str(caught.value)
