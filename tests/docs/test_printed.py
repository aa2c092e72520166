"""What the documents say that a command prints is what it prints today: one small real study for all of them."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.journal.sql import current_owner
from hpo_core.model.devices.pool_member import Grant, Member
from hpo_core.pool.store import RowChange, pools_of
from hpo_core.study import Study
from hpo_core.tracking.provenance_files import DIGEST_TAG
from hpo_flows.command import app
from tests.conftest import make_spec
from tests.docs.samples import Sample, is_printed, samples_in
from tests.docs.test_docs import PAGES, ROOT, write_files
from tests.flows.conftest import LIMIT, Runner

FOLDER, HOME = "/home/me/sine", "/home/me/sine/.hpo"
"""Of the study in the pages."""
SAMPLES = [
    sample
    for page in PAGES
    if not page.is_relative_to(ROOT / "hpo_core") and not page.is_relative_to(ROOT / "flows")  # which hold drawings
    for sample in samples_in(page, ROOT)
]


def samples(command: str) -> list[Sample]:
    return [sample for sample in SAMPLES if re.fullmatch(command, sample.command)]


def sample(command: str) -> Sample:
    (found,) = samples(command)
    return found


def check(shown: Sample, printed: str, replaced: dict[str, str] | None = None, *, exactly: bool = False) -> None:
    if not is_printed(shown, printed, replaced or {}, exactly=exactly):
        pytest.fail(f"{shown} shows\n\n{chr(10).join(shown.lines)}\n\nbut this is printed:\n\n{printed}", pytrace=False)


RUN_HERE = [
    "python sine.py",
    "hpo tune study.yaml",
    "hpo simulate .*",
    "hpo status [ac]",
    "these lines",
    "hpo import digits --from-optuna .*",
    "hpo import --from-mlflow .*",
    "hpo check .*",
]
"""Commands whose output a test below compares, or one of ``test_first_pages.py``."""


def test_every_sample_of_output_is_compared_with_what_is_printed() -> None:
    """A new one needs a test here, and ``<!-- printed by: COMMAND -->`` above it; a drawing ``<!-- a drawing -->``."""
    unknown = [
        f"{shown.page}: {shown.lines[0]!r} by {shown.command!r}"
        for shown in SAMPLES
        if not any(re.fullmatch(command, shown.command) for command in RUN_HERE)
    ]
    assert not unknown, unknown
    for command in RUN_HERE:
        assert samples(command), f"no page shows what `{command}` prints"


def test_shapes_tell_words_layout_and_rounding_apart() -> None:
    shown = Sample("a.md", "x", ("...", "[3 done, ETA 2 s] trial 1: rest ...", "", "end in 1 min 3 s", "  rate = 0.25"))
    printed = "first\nsecond\n[48 done, ETA 1 min] trial 7: rest of it\n\nend in 12 s\n  rate = 0.5\n"
    assert is_printed(shown, printed, {})
    changed = {"ETA 1 min": "ETA 0:00", "  rate": " rate", "0.5": "0.11620646334520067", "end": "ends", "\n\n": "\n"}
    for before, after in changed.items():
        assert not is_printed(shown, printed.replace(before, after), {}), after
    assert not is_printed(shown, printed + "one more line\n", {})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, prefect_api: dict[str, str]) -> Iterator[tuple[Runner, str]]:
    """The first study as the pages describe it, in a repository of its own; what it printed."""
    folder = tmp_path_factory.mktemp("sine")
    write_files(folder)
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "train.py", "study.yaml"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    hpo = Runner(folder, prefect_api)
    yield hpo, hpo("tune", "study.yaml")


def replaced(hpo: Runner) -> dict[str, str]:
    return {str(hpo.home): HOME, str(hpo.folder): FOLDER}


def test_first_study_runs_and_prints_as_written(tuned: tuple[Runner, str]) -> None:
    hpo, printed = tuned
    facts = hpo.json("status", "sine")
    assert facts["status"] == "finished" and facts["trials"] == 30
    assert facts["best"]["value"] < 0.3
    check(sample("hpo tune study.yaml"), printed, replaced(hpo))


@pytest.mark.slow
def test_study_comes_back_from_mlflow_as_written(tuned: tuple[Runner, str], tmp_path: Path) -> None:
    from mlflow import MlflowClient

    hpo, _ = tuned
    store = f"sqlite:///{hpo.home / 'mlflow.db'}"
    client = MlflowClient(store)
    (experiment,) = client.search_experiments(filter_string="name = 'hpo'")
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`{DIGEST_TAG}` != ''")
    arguments = ["import", "--from-mlflow", run.info.run_id, "--tracking-uri", store, "--code", str(hpo.folder)]
    done = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path)])
    assert done.exit_code == 0, done.output
    check(sample("hpo import --from-mlflow .*"), done.stdout, replaced(hpo))


@pytest.mark.slow
def test_check_names_what_differs_as_written(tmp_path: Path) -> None:
    write_files(tmp_path, "forgetful.py")
    shown = sample("hpo check .*")
    hpo = Runner(tmp_path, {})
    process = hpo.start(*shlex.split(shown.command)[1:])
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, out + err
    check(shown, err + out)  # what runs is said on standard error


@pytest.mark.parametrize("shown", samples("hpo simulate .*"), ids=lambda shown: shown.command[:60])
def test_simulation_prints_exactly_what_is_written(shown: Sample, tmp_path: Path) -> None:
    """The same on every machine, for its draws have a seed."""
    write_files(tmp_path, "study.yaml")
    check(shown, Runner(tmp_path, {})(*shlex.split(shown.command)[1:]), exactly=True)


def test_optuna_import_says_what_is_written(tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = sample("hpo import digits --from-optuna .*")
    words = shlex.split(shown.command)[1:]
    url = words[words.index("--from-optuna") + 1].replace("theirs.db", str(tmp_path / "theirs.db"))
    words[words.index("--from-optuna") + 1] = url
    theirs = optuna.create_study(storage=url, study_name="digits")
    space: dict[str, Any] = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    theirs.add_trials([
        create_trial(params={"x": 0.1 * k}, distributions=space, value=0.1 * k, intermediate_values={26: 0.1 * k})
        for k in range(4)
    ])  # fmt: skip
    theirs.add_trial(create_trial(params={"x": 0.5}, distributions=space, state=TrialState.FAIL))
    done = CliRunner().invoke(app, [*words, "--home", str(tmp_path / "home")])
    assert done.exit_code == 0, done.output
    check(shown, done.stdout)


def shared(home: Path, pool: str, members: dict[Member, tuple[str, ...]]) -> None:
    """Studies driven by this process, with what they say in a pool and what they hold there."""
    journal = Home(home).open_journal()
    for member, held in members.items():
        named = member.kind == "worker"
        cluster = {"kind": "address", "address": "tcp://10.0.0.5:8786"} if named else {"kind": "local"}
        name = {} if named else {"pool": "gpu"}
        spec = make_spec(study=member.study, cluster=cluster, share={"weight": member.weight, **name})
        Study.create(spec, journal)
        journal.claim(member.study, current_owner())
        change = RowChange(member, {member.study: Grant(held=held)})
        pools_of(journal).change(pool, member.study, lambda _, change=change: change)
    journal.close()


def workers(*numbers: int) -> tuple[str, ...]:
    return tuple(f"tcp://10.0.0.{6 + number}:4000" for number in numbers)


def worker_pool(home: Path) -> None:
    common: dict[str, Any] = {
        "seen": 8,
        "kind": "worker",
        "usable": workers(*range(8)),
    }
    held = {"a": workers(0, 1, 2), "b": workers(3, 4), "c": workers(5, 6, 7)}
    more: dict[str, dict[str, Any]] = {"c": {"waited": 5.0, "weight": 2.0}}
    shared(home, "tcp://10.0.0.5:8786", {
        Member(study=name, demand=8, **common, **more.get(name, {})): mine for name, mine in held.items()
    })  # fmt: skip


def device_pool(home: Path) -> None:
    held = {"a": ("GPU-0",), "b": ("GPU-1",)}
    shared(home, "gpu on node7, whole devices", {
        Member(study=name, demand=2, seen=2, kind="device", usable=("GPU-0", "GPU-1")): mine
        for name, mine in held.items()
    })  # fmt: skip


@pytest.mark.parametrize(("name", "pool"), [("a", device_pool), ("c", worker_pool)])
def test_status_in_a_pool_says_what_is_written(name: str, pool: Callable[[Path], None], tmp_path: Path) -> None:
    pool(tmp_path)
    done = CliRunner().invoke(app, ["status", name, "--home", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    check(sample(f"hpo status {name}"), done.stdout)


@pytest.mark.parametrize("shown", samples("these lines"), ids=lambda shown: shown.page)
def test_lines_of_python_print_exactly_what_is_written(shown: Sample) -> None:
    text = (ROOT / shown.page).read_text()
    before = text[: text.index("\n".join(shown.lines))]
    code = re.findall(r"```python\n(.*?)```", before, re.DOTALL)[-1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().splitlines() == list(shown.lines)
