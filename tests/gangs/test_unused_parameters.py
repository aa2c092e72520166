"""What torch writes to the log of a rank whose model was wrapped by ``trial.data_parallel``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpo_core.training.child.trainer import ENVIRONMENT

ADVICE = "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters"
RANK = """
import os, sys
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch
from torch import distributed
from hpo_core.training.request import RankPlace
from hpo_core.training.ranks import Ranks

store = sys.argv[1]
distributed.init_process_group("gloo", store=distributed.FileStore(store, 1), rank=0, world_size=1)
model = torch.nn.Linear(2, 2)
wrapped = Ranks(RankPlace(rank=0, size=1, local_rank=0, local_size=1, store=store)).data_parallel(model)
for _ in range(2):
    wrapped(torch.ones(1, 2)).sum().backward()
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("level", "is_there"), [({}, False), ({"TORCH_CPP_LOG_LEVEL": "WARNING"}, True)])
def test_advice_that_nobody_can_follow_is_not_in_the_log(tmp_path: Path, level: dict[str, str], is_there: bool) -> None:
    """A worker whose environment asks for torch's warnings gets them."""
    run = subprocess.run(
        [sys.executable, "-c", RANK, str(tmp_path / "store")],
        env={**ENVIRONMENT, **os.environ, **level},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    assert (ADVICE in run.stderr) == is_there, run.stderr
