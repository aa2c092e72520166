"""What decides a job's need, what a user states of it, and which source it was measured of."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.errors import SpecError
from hpo_core.model.space import SearchSpace
from hpo_core.packing.packed_run import objective_digest, shared_devices_of
from hpo_core.packing.room import SharedDevice
from hpo_core.spec.packing import deciding_parameters
from hpo_core.study import Study
from tests.conftest import make_spec


def space_of(**parameters: Any) -> SearchSpace:
    return make_spec(space=parameters).search_space()


SPACE = space_of(
    lr={"type": "float", "low": 1e-4, "high": 0.1, "log": True},
    noise={"type": "float", "low": -1.0, "high": 1.0},
    dropout={"type": "ordinal", "choices": [0.1, 0.2]},
    width={"type": "int", "low": 8, "high": 64},
    batch={"type": "ordinal", "choices": [16, 32, 128]},
    optimizer={"type": "categorical", "choices": ["sgd", "adam"]},
    depth={"type": "int", "low": 1, "high": 4, "when": {"optimizer": "adam"}},
)
CONSTANTS = {"data": "train.npz", "decay": 0.1, "heads": 4}


def test_all_that_are_no_plain_floats_decide_unless_they_are_named() -> None:
    found = deciding_parameters(SPACE, CONSTANTS)
    assert found == ("width", "batch", "optimizer", "depth", "data", "heads")
    assert deciding_parameters(SPACE, CONSTANTS, ["lr", "heads"]) == ("lr", "heads")
    assert deciding_parameters(SPACE, CONSTANTS, []) == ()


@pytest.mark.parametrize(
    ("packing", "said"),
    [
        ({"by": ["widht"]}, "packing.by: 'widht' is no parameter of the space and no constant; did you mean 'width'?"),
        ({"by": ["width", "width"]}, "twice"),
        ({"demand": {"memory": "-1GB"}}, "must be a number, 0 or more"),
        ({"demand": {"memory": 0}}, "must be above 0"),
        ({"demand": {"compute": 300}}, "is 300 percent of the device; at most 100"),
        ({"demand": {"memroy": "6GB"}}, "did you mean 'memory'"),
        ({"demand": {"function": "no name"}}, "packing.demand.function"),
        ({"memory": "8GB * 2"}, "must be a number, 0 or more, or an amount such as 6GB"),
    ],
)
def test_a_new_study_refuses_them_before_it_starts(packing: dict[str, Any], said: str) -> None:
    space = {"width": {"type": "int", "low": 8, "high": 64}}
    make_spec(space=space, packing={"by": ["width"], "demand": {"memory": "1.5GB", "function": "m:need"}})
    with pytest.raises(SpecError, match=re.escape(said)):
        make_spec(space=space, packing=packing)


def test_a_function_of_the_users_says_what_a_job_needs(tmp_path: Path) -> None:
    (tmp_path / "lab_of_needs.py").write_text("def need(params):\n    return {'memory': 10**9 * params['width']}\n")
    spec = make_spec(
        space={"width": {"type": "int", "low": 8, "high": 64}},
        packing={"demand": {"function": "lab_of_needs:need", "compute": 30}},
        pythonpath=[str(tmp_path)],
    )
    assert spec.functions["packing.demand.function"] == "lab_of_needs:need", "looked for, allowed and sent as others"
    estimates = shared_devices_of(Study.create(spec)).estimates
    device = SharedDevice(name="gpu-0", node="a", architecture="A100", memory=40 * 10**9)
    need = estimates.of({"width": 9}, units=1, device=device, node_cores=8000).need
    assert (need.memory, need.compute) == (9 * 10**9, 300)


def test_the_digest_follows_the_source_and_imports_nothing(tmp_path: Path) -> None:
    package = tmp_path / "lab_of_digests" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    file = package / "train.py"
    file.write_text("raise SystemExit('imported')\n")
    path, name = [str(tmp_path)], "lab_of_digests.inner.train:fit"
    first = objective_digest(name, path)
    assert objective_digest(name, path) == first
    assert objective_digest("lab_of_digests.inner.train:Fit", path) != first, "another function of the same file"
    file.write_text("raise SystemExit('edited')\n")
    edited = objective_digest(name, path)
    assert edited != first
    assert objective_digest(name) == objective_digest(name, ["/nowhere"]) != edited, "not found: of the name alone"
    file.write_text("raise SystemExit('imported')\n")
    assert objective_digest(name, path) == first
    model = package / "model.py"
    model.write_text("raise SystemExit('imported')\n")
    assert objective_digest(name, path) == first, "nothing uses it"
    file.write_text("from . import model\nraise SystemExit('imported')\n")
    with_model = objective_digest(name, path)
    model.write_text("raise SystemExit('larger')\n")
    assert objective_digest(name, path) != with_model, "a model defined elsewhere decides, too"
    assert not [module for module in sys.modules if module.startswith("lab_of_digests")]
