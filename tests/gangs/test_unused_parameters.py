"""What torch writes to the log of a rank whose model was wrapped by ``trial.data_parallel``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpo_core.training.ranks import ADVICE

RANK = """
import os, sys
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch
from torch import distributed
from hpo_core.training.request import RankPlace
from hpo_core.training.ranks import Ranks
from hpo_core.training.ranks import stderr_without

store, options = sys.argv[1], eval(sys.argv[2])
distributed.init_process_group("gloo", store=distributed.FileStore(store, 1), rank=0, world_size=1)
before = torch.random.get_rng_state()
model = torch.nn.Linear(2, 2)
after = torch.random.get_rng_state()
wrapped = Ranks(RankPlace(rank=0, size=1, local_rank=0, local_size=1, store=store)).data_parallel(model, **options)
assert torch.equal(torch.random.get_rng_state(), after), "it drew from the random stream of the trial"
for _ in range(2):
    wrapped(torch.ones(1, 2)).sum().backward()
with stderr_without(b"advice"):
    os.write(2, b"first\\n")
    print("some advice", file=sys.stderr)
    print("last", file=sys.stderr)
print("afterwards", file=sys.stderr)
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "is_there"), [({}, False), ({"find_unused_parameters": True}, True), ({"static_graph": False}, False)]
)
def test_advice_that_nobody_can_follow_is_not_in_the_log(
    tmp_path: Path, options: dict[str, bool], is_there: bool
) -> None:
    """Who asks for the search in the training function hears what torch says of it."""
    command = [sys.executable, "-c", RANK, str(tmp_path / "store"), repr(options)]
    run = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=600)
    assert run.returncode == 0, run.stderr.decode()
    assert (ADVICE in run.stderr) == is_there, run.stderr.decode()
    lines = run.stderr.decode().splitlines()
    assert [line for line in lines if line in ("first", "last", "afterwards")] == ["first", "last", "afterwards"]
    assert not any("some advice" in line for line in lines)
