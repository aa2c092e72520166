"""Digests of the values that a function by value reads: the same in every process, another one for another value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import hpo_core as hpo
from tests.waiting import eventually

VALUES = """
import array, collections, dataclasses, datetime, decimal, enum, fractions, functools, json, logging, os, pathlib
import random, re, sys, types, typing, uuid, weakref
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from hpo_core.spec.sent_functions import function_name, source_digest_of

X = torch.linspace(-1, 1, 64).unsqueeze(1)
WORDS = {"alpha", "beta", "gamma", "delta", ("a", 1), frozenset({"x", "y"})}


class Act(enum.Enum):
    RELU = "relu"
    TANH = "tanh"

    @property
    def short(self):
        return self.value[:1]


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Conf:
    names: frozenset
    act: Act = Act.TANH
    sizes: list[int] | None = None
    more: dict = dataclasses.field(default_factory=dict)


class Point(typing.NamedTuple):
    x: float
    y: float


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Base:
    scale = 2.0

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor * self.scale


class Noise(Base):
    tags = {"one", "two", "three"}

    def __init__(self, factor):
        super().__init__(factor)

    @property
    def doubled(self):
        return 2 * self.factor

    @staticmethod
    def twin(x):
        return Noise(x)

    @classmethod
    def default(cls):
        return cls(1.0)


class Net(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LSTM(4, 2, batch_first=True))
        self.register_buffer("mask", torch.ones(2))
        for one in self.parameters():
            nn.init.constant_(one, fill)
        self.tied = self.layers[0].weight

    def forward(self, x):
        return self.layers(x)


class Items(Dataset):
    def __init__(self, rows, transform):
        self.rows, self.transform = rows, transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.transform(self.rows[index])


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def held(factor):
    def inner(x):
        return x * factor

    return inner


def ring():
    first, second = {"name": "first"}, {"name": "second"}
    first["next"], second["next"] = second, first
    return first


def padded():
    rows = np.empty(3, dtype=np.dtype([("a", "i1"), ("b", "f8"), ("c", object)], align=True))
    rows["a"], rows["b"], rows["c"] = 1, 2.0, "text"
    return rows


def trained():
    torch.manual_seed(3)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return net, optimizer


def sliced():
    whole = torch.empty(4096)
    whole[:3] = torch.tensor([1.0, 2.0, 3.0])
    return whole[:3]


FRAME = {"a": [1, 2], "b": ["x", None], "c": pd.Categorical(["u", "v"]), "d": pd.to_datetime(["2026-01-01", None])}
both = {
    # kind: (value, another value)
    "tensor": (X, X + 1),
    "dtype of a tensor": (torch.zeros(4), torch.zeros(4, dtype=torch.float64)),
    "shape of a tensor": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "tensor of bfloat16": (X.bfloat16(), X.bfloat16() * 2),
    "tensor of complex": (torch.complex(X, X).conj(), torch.complex(X, X)),
    "tensor of no dimension": (torch.tensor(3), torch.tensor(4)),
    "tensor of booleans": (X > 0, X < 0),
    "empty tensor": (torch.zeros(0, 3), torch.zeros(0, 4)),
    "part of a tensor": (sliced(), sliced() + 1),
    "turned tensor": (torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(3, 2)),
    "sparse tensor": (torch.eye(3).to_sparse(), torch.ones(3, 3).to_sparse()),
    "sparse rows": (torch.eye(3).to_sparse_csr(), torch.ones(3, 3).to_sparse_csr()),
    "quantized tensor": (
        torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), torch.quantize_per_tensor(X, 0.2, 0, torch.quint8)
    ),
    "parameter": (nn.Parameter(X), nn.Parameter(X, requires_grad=False)),
    "tensors in a dictionary": ({"x": X, "y": [X, (X,)]}, {"x": X, "y": [X, (X + 1,)]}),
    "torch generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    "torch settings": ((torch.float32, torch.device("cpu"), torch.Size([1])), (torch.float64, torch.device("cpu"), 1)),
    "module": (Net(0.5), Net(0.25)),
    "module of torch": (nn.Sequential(nn.Linear(1, 1, device="meta")), nn.Sequential(nn.Linear(1, 2, device="meta"))),
    "state of a module": (Net(0.5).state_dict(), Net(0.25).state_dict()),
    "optimizer": (trained(), (trained()[0], trained()[1].state_dict())),
    "tensor data set": (TensorDataset(X, torch.sin(X)), TensorDataset(X, torch.cos(X))),
    "part of a data set": (Subset(TensorDataset(X), [1, 2]), Subset(TensorDataset(X), [1, 3])),
    "loader": (DataLoader(TensorDataset(X), batch_size=4), DataLoader(TensorDataset(X), batch_size=8)),
    "data set with a function": (Items([1, 2], lambda x: x + 1), Items([1, 2], lambda x: x + 2)),
    "array": (np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2)),
    "dtype of an array": (np.zeros(4, "<i4"), np.zeros(4, "<f4")),
    "order of an array": (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3) + 1),
    "objects in an array": (np.array([{"a", "b", "c"}, X], dtype=object), np.array([{"a", "b"}, X], dtype=object)),
    "rows with gaps": (padded(), padded()[:2]),
    "masked array": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "dates in an array": (np.array(["2026-01-01"], "M8[D]"), np.array(["2026-01-02"], "M8[D]")),
    "texts in an array": (np.array(["a", "b"]), np.array(["a", "c"])),
    "numpy scalar": (np.float32(0.1), np.float64(0.1)),
    "numpy generator": (np.random.default_rng(1), np.random.default_rng(2)),
    "old numpy generator": (np.random.RandomState(1), np.random.RandomState(2)),
    "numpy function": (np.sin, np.cos),
    "frame": (pd.DataFrame(FRAME), pd.DataFrame(FRAME | {"a": [1, 3]})),
    "frame with an index": (
        pd.DataFrame({"v": [1.0, 2.0]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
        pd.DataFrame({"v": [1.0, 2.0]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 3)])),
    ),
    "column": (pd.Series(["a", "b"], name="x"), pd.Series(["a", "b"], name="y")),
    "missing values": ((pd.NA, pd.NaT, pd.Timedelta("1s")), (pd.NaT, pd.NA, pd.Timedelta("1s"))),
    "set": (WORDS, WORDS | {"more"}),
    "frozen set": (frozenset(WORDS), frozenset({"a"})),
    "set of many": ({f"word {n}" for n in range(3000)}, {f"word {n}" for n in range(1, 3001)}),
    "set of objects": (
        {Act.RELU, Act.TANH, even, odd, Noise, Point(1.0, 2.0)}, {Act.RELU, even, odd, Noise}
    ),
    "dictionary in the order of a set": (dict.fromkeys({"a", "b", "c"}, 1), dict.fromkeys({"a", "b", "d"}, 1)),
    "ordered dictionary": (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)),
    "default dictionary": (collections.defaultdict(list, a=[1]), collections.defaultdict(set, a=[1])),
    "counter": (collections.Counter("abca"), collections.Counter("abcb")),
    "queue": (collections.deque([1, {"a", "b"}], maxlen=3), collections.deque([1, {"a", "b"}], maxlen=4)),
    "ring": (ring(), ring() | {"name": "third"}),
    "long list": (list(range(5000)), list(range(1, 5001))),
    "list of one text twice": (["ab" * 300, "ab" * 300], ["ab" * 300, "ac" * 300]),
    "numbers": ((1, True, 1.0, 1j, float("nan"), -0.0), (1, True, 1.0, 1j, float("nan"), 0.0)),
    "exact numbers": ((decimal.Decimal("1.1"), fractions.Fraction(1, 3)), (decimal.Decimal("1.10"), 1)),
    "bytes": ((b"a" * 999, bytearray(b"b"), array.array("d", [1.0])), (b"a" * 999, bytearray(b"c"), 1)),
    "times": ((datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), range(3)), (datetime.date(2026, 1, 1), range(3))),
    "pattern": (re.compile("a+"), re.compile("a+", re.I)),
    "path": (pathlib.Path("a"), pathlib.PurePosixPath("a")),
    "enum": (Act.TANH, Act.RELU),
    "flag": (Level.LOW | Level.HIGH, Level.LOW),
    "data class": (Conf(frozenset({"u", "v", "w"})), Conf(frozenset({"u", "v"}))),
    "named tuple": (Point(1.0, 2.0), Point(1.0, 3.0)),
    "slots": (Slotted(1, {"a", "b", "c"}), Slotted(1, {"a", "b"})),
    "name space": (types.SimpleNamespace(a={"x", "y", "z"}), types.SimpleNamespace(a={"x"})),
    "class": ([Noise], [Base]),
    "class of typing": ([typing.Optional[int], list[str], int | None], [typing.Optional[str], list[str], int | None]),
    "object": ([Noise(1.0)], [Noise(2.0)]),
    "closure": ([held(2.0)], [held(3.0)]),
    "closure over a set": ([held({"a", "b", "c"})], [held({"a", "b"})]),
    "lambda": ([lambda x: x in {"a", "b", "c"}], [lambda x: x in {"a", "b", "d"}]),
    "functions that call each other": ([even, odd], [odd, even]),
    "bound method": ([Noise(1.0).__call__, Noise.default], [Noise(2.0).__call__, Noise.default]),
    "partial": ([functools.partial(held, 2.0)], [functools.partial(held, 3.0)]),
    "cached function": ([functools.lru_cache(held)], [functools.lru_cache(even)]),
    "python generator": (random.Random(1), random.Random(2)),
    "logger": ([logging.getLogger("a")], [logging.getLogger("b")]),
    "modules": ([os, np.linalg, torch.nn.functional], [os.path, np.linalg]),
    "error": (ValueError("a", {"x", "y"}), ValueError("b", {"x", "y"})),
    "weak set": (weakref.WeakSet([Act.RELU, Act.TANH]), weakref.WeakSet([Act.RELU])),
}


def digest(value):
    def train(trial):
        return value

    return source_digest_of(function_name(train))


if __name__ == "__main__":
    print(json.dumps({kind: [digest(one) for one in pair] for kind, pair in both.items()}))
"""


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """Of each kind of value and of another one of it, in two processes."""
    folder = tmp_path_factory.mktemp("values")
    (folder / "values.py").write_text(VALUES)
    found = []
    for seed in ("0", "77"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PADDING": "x" * int(seed)}  # other addresses
        run = subprocess.run(
            [sys.executable, folder / "values.py"], env=environment, capture_output=True, text=True, cwd="/"
        )
        assert run.returncode == 0, run.stderr
        found.append(json.loads(run.stdout))
    return found


def test_the_digest_of_a_value_is_the_same_in_every_process(digests: list[dict[str, list[str]]]) -> None:
    others = [kind for kind in digests[0] if digests[0][kind] != digests[1][kind]]
    assert not others
    assert len(digests[0]) > 70


def test_the_digest_of_another_value_is_another_one(digests: list[dict[str, list[str]]]) -> None:
    assert not [kind for kind, (one, other) in digests[0].items() if one == other]


SCRIPT = """
import numpy as np

import hpo_core as hpo

x = np.linspace(-1, 1, 8)
more = {"x": x, "names": {"a", "b", "c"}}


def train(trial):
    total = hpo.State(value=0.0)
    trial.track(total=total)
    for step in trial.steps():
        total.value += trial.params["rate"] * float(x[1] + more["x"][0]) + len(more["names"])
        trial.report(loss=total.value)


result = hpo.tune(
    train, {"rate": hpo.Float(0, 1)}, metric="loss", method=hpo.Random(configs=16, max_resource=2), name="again",
    resume=True, home="home", prefect="off", tracking={"mlflow": "off"}, progress=False, workers=1, seed=1,
)
print(result.status, len(result.trials), result.best.value)
"""


def test_the_unchanged_script_goes_on_with_its_study(tmp_path: Path) -> None:
    """After it was killed, and after its end; another value is refused."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def begin() -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([sys.executable, script.name], cwd=tmp_path, **pipes)

    def results() -> int:
        with suppress(hpo.HpoError, OSError):
            return len(hpo.load("again", tmp_path / "home").results)
        return 0

    first = begin()
    eventually(lambda: results() > 0 or first.poll() is not None)
    first.kill()
    first.communicate()
    assert 0 < results() < 16
    second, third = (begin().communicate()[0] for _ in range(2))
    assert second.startswith("finished 16"), second
    assert third == second
    script.write_text(SCRIPT.replace("linspace(-1, 1", "linspace(-1, 2"))
    assert "accept_changes=True) goes on with a changed function" in begin().communicate()[0]
