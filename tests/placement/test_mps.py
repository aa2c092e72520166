"""The life of MPS daemons: real processes and signals; only NVIDIA's program is a stand-in."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpo_core.placement import mps, mps_keeper
from hpo_core.placement.mps import MpsDaemons, NoMpsError, folder_of_user
from tests.mps_stub.daemons import LIMIT, MpsStub, Worker, lives, until


@pytest.fixture
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpsStub]:
    stub = MpsStub(tmp_path_factory.mktemp("m"))
    yield stub
    stub.close()


@pytest.fixture
def worker(stub: MpsStub) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(**settings: float) -> Worker:
        workers.append(Worker(stub, **settings))
        return workers[-1]

    yield start
    for one in workers:
        one.kill()


@pytest.fixture
def found(stub: MpsStub, monkeypatch: pytest.MonkeyPatch) -> MpsStub:
    """The program is on this process's PATH."""
    for name, value in stub.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return stub


def daemons(stub: MpsStub) -> MpsDaemons:
    return MpsDaemons(stub.base, by_hand=stub.record / "default", wait=LIMIT)


def test_two_workers_at_once_share_one_daemon_which_the_last_one_ends(
    stub: MpsStub, worker: Callable[..., Worker]
) -> None:
    one, other = worker(), worker(linger=0.1)
    for each in (one, other):
        each.ask("begin", "GPU-a")
    pipes = {one.answer(), other.answer()}
    assert pipes == {str(stub.base / "GPU-a" / "pipe")}
    ((pid, gpu),) = stub.calls("start")
    assert gpu == "GPU-a" and lives(int(pid))
    for folder in (stub.base, stub.base / "GPU-a", stub.base / "GPU-a" / "pipe", stub.base / "GPU-a" / "log"):
        assert folder.stat().st_mode & 0o777 == 0o700
    one.kill()
    time.sleep(3 * mps_keeper.LOOK_SECONDS)
    assert stub.living() == [int(pid)], "the other worker still uses it"
    other.do("end")
    until(lambda: not stub.living() and not stub.keepers(), "the last user ends the daemon")
    assert stub.calls("end") == [[pid]]


def test_kill_9_of_all_users_ends_the_daemon_and_of_its_keeper_begins_anew(
    stub: MpsStub, worker: Callable[..., Worker]
) -> None:
    one = worker()
    assert one.do("begin").endswith("/pipe")
    (keeper,) = stub.keepers()
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not stub.living(), "a daemon goes with its keeper")
    assert one.do("begin").endswith("/pipe")
    assert len(stub.living()) == 1 and len(stub.started()) == 2
    one.kill()
    until(lambda: not stub.living() and not stub.keepers(), "kill -9 of all users ends it")


def test_a_daemon_that_cannot_start_is_off_with_its_own_words(found: MpsStub) -> None:
    found.behave("fail")
    users = daemons(found)
    for _ in range(2):  # the second time from memory
        with pytest.raises(NoMpsError, match="ended with 1: .*insufficient permission"):
            users.begin("GPU-a")
    assert len(found.started()) == 1
    said = users.prepare(["GPU-a", "MIG-1", "MIG-2"]).split("; ")
    assert said[0].startswith("MPS is off for GPU-a: ") and said[1].startswith(
        "MPS is off for MIG-1, MIG-2: only whole"
    )
    with users.used("GPU-a") as pipes:
        assert pipes == ""
    until(lambda: not found.keepers(), "its keeper goes")


@pytest.mark.parametrize("device", ["MIG-1c", "cpu:host", "GPU-../../etc", "GPU-a/b", ""])
def test_slices_and_names_that_lead_elsewhere_have_none(found: MpsStub, device: str) -> None:
    with pytest.raises(NoMpsError, match="only whole GPUs"):
        daemons(found).begin(device)
    assert not found.base.exists()


def test_off_without_the_program(found: MpsStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(found.record))
    with pytest.raises(NoMpsError, match="nvidia-cuda-mps-control is not on PATH"):
        daemons(found).begin("GPU-a")


def test_a_daemon_started_by_hand_is_left_alone(
    found: MpsStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import subprocess

    pipes = found.record / "default"
    pipes.mkdir()
    environment = found.environment() | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    by_hand = subprocess.Popen([mps.CONTROL, "-f"], env=environment)
    try:
        until(lambda: (pipes / "nvidia-cuda-mps-control.pid").exists(), "it runs")
        with pytest.raises(NoMpsError, match=f"somebody started.*process {by_hand.pid}"):
            daemons(found).begin("GPU-a")
        assert by_hand.poll() is None and not found.keepers()
    finally:
        by_hand.kill()
        by_hand.wait(LIMIT)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with pytest.raises(NoMpsError, match="CUDA_MPS_PIPE_DIRECTORY is set"):
        daemons(found).begin("GPU-a")


@pytest.mark.parametrize("planted", ["link", "open", "file", "inner link", "lock link"])
def test_a_planted_folder_is_refused(found: MpsStub, tmp_path: Path, planted: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if planted == "link":
        found.base.symlink_to(elsewhere)
    elif planted == "open":
        found.base.mkdir()
        found.base.chmod(0o777)
    elif planted == "file":
        found.base.write_text("")
    else:
        found.base.mkdir(mode=0o700)
        if planted == "inner link":
            (found.base / "GPU-a").symlink_to(elsewhere)
        else:
            (found.base / "GPU-a").mkdir(mode=0o700)
            (found.base / "GPU-a" / "users").symlink_to(elsewhere / "users")
    with pytest.raises(NoMpsError, match="of this user alone|Too many levels of symbolic links"):
        daemons(found).begin("GPU-a")
    assert not list(elsewhere.iterdir()) and not found.started()


def test_a_folder_of_another_owner_is_refused(found: MpsStub) -> None:
    if os.getuid():
        pytest.skip("only root can make files of another user")
    found.base.mkdir(mode=0o700)
    os.chown(found.base, 12345, 12345)
    with pytest.raises(NoMpsError, match="of this user alone"):
        daemons(found).begin("GPU-a")


def test_the_folder_of_a_user_has_a_name_that_nobody_can_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/tmp/hpo-mps-UID` could be made by anybody first, and MPS was off then."""
    monkeypatch.delenv("HPO_MPS_FOLDER", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as several:
        (first,) = {future.result() for future in [several.submit(folder_of_user) for _ in range(8)]}
    try:
        assert re.fullmatch(r"/tmp/hpo-mps-[a-z0-9_]{8}", str(first)) and first.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / ".hpo-mps").stat().st_mode & 0o777 == 0o700
        assert folder_of_user() == first
    finally:
        first.rmdir()
    second = folder_of_user()  # /tmp was emptied
    try:
        assert second != first and second.is_dir()
        second.chmod(0o755)
        third = folder_of_user()
        assert third != second, "one that others can enter is not used"
        third.rmdir()
    finally:
        second.rmdir()


def test_without_a_home_folder_mps_is_off_and_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPO_MPS_FOLDER", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(NoMpsError, match="set HPO_MPS_FOLDER to one"):
        folder_of_user()


def test_a_path_too_long_for_a_socket_is_refused(found: MpsStub, tmp_path: Path) -> None:
    found.base = tmp_path / ("m" * 100)
    with pytest.raises(NoMpsError, match="too long a path"):
        daemons(found).begin("GPU-a")


def test_files_of_a_long_study_stay_young(tmp_path: Path) -> None:
    folder = tmp_path / "mps" / "GPU-a"
    (folder / "pipe").mkdir(parents=True)
    files = [folder / "users", folder / "keeper", folder / "pipe" / "control", folder, folder.parent]
    for path in files:
        path.touch()
    for path in files:
        os.utime(path, (0, 0))
    mps_keeper.touch_all(folder)
    assert all(path.stat().st_mtime > 1e9 for path in files)


@pytest.mark.slow
def test_a_daemon_that_hangs_on_quit_is_killed_with_its_server_and_the_next_user_waits_for_that(
    stub: MpsStub, worker: Callable[..., Worker]
) -> None:
    stub.behave("hang")
    one = worker()
    assert one.do("begin").endswith("/pipe")
    ((server,),) = stub.calls("server")
    one.kill()
    until(lambda: ["quit"] in stub.calls("command"), "it is asked to end")
    assert stub.living(), "it hangs"
    other = worker()
    assert other.do("begin").endswith("/pipe")
    assert len(stub.started()) == 2 and stub.living() == [stub.started()[1]], "never two at once"
    assert not lives(int(server))


@pytest.mark.slow
def test_a_daemon_that_ignores_its_keepers_death_is_ended_by_the_next(
    stub: MpsStub, worker: Callable[..., Worker]
) -> None:
    stub.behave("hang")
    one = worker()
    assert one.do("begin").endswith("/pipe")
    for pid in stub.keepers():
        os.kill(pid, signal.SIGKILL)
    one.kill()
    assert len(stub.living()) == 1
    assert worker().do("begin").endswith("/pipe")
    assert stub.living() == [stub.started()[1]]


@pytest.mark.slow
def test_a_daemon_that_never_answers_is_given_up(stub: MpsStub, worker: Callable[..., Worker]) -> None:
    stub.behave("mute")
    assert "does not answer" in worker().do("begin")
    until(lambda: not stub.living() and not stub.keepers(), "it is not left behind")


@pytest.mark.slow
def test_a_stopped_keeper_blocks_nobody(stub: MpsStub, worker: Callable[..., Worker]) -> None:
    one = worker()
    assert one.do("begin").endswith("/pipe")
    (keeper,) = stub.keepers()
    os.kill(keeper, signal.SIGSTOP)
    try:
        other = worker()
        assert other.do("begin").endswith("/pipe"), "the daemon runs, whatever its keeper does"
        other.kill()
        os.kill(stub.living()[0], signal.SIGKILL)  # nobody notices: jobs would run without it
        assert one.do("begin").endswith("/pipe")
        one.kill()
    finally:
        os.kill(keeper, signal.SIGCONT)
    until(lambda: not stub.keepers(), "it goes on to its end")


@pytest.mark.slow
def test_a_keeper_that_is_stopped_while_it_ends_the_daemon_blocks_nobody(
    stub: MpsStub, worker: Callable[..., Worker]
) -> None:
    stub.behave("hang")
    one = worker()
    assert one.do("begin").endswith("/pipe")
    (keeper,) = stub.keepers()
    one.kill()
    until(lambda: ["quit"] in stub.calls("command"), "it is asked to end")
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert "the daemon before it does not end" in worker(wait=2.0).do("begin")
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert worker().do("begin").endswith("/pipe")
    assert len(stub.living()) == 1


@pytest.mark.slow
def test_a_daemon_that_died_is_replaced(stub: MpsStub, worker: Callable[..., Worker]) -> None:
    one = worker()
    assert one.do("begin").endswith("/pipe")
    os.kill(stub.living()[0], signal.SIGKILL)
    until(lambda: not stub.keepers(), "its keeper notices")
    assert one.do("begin").endswith("/pipe") and len(stub.living()) == 1


@pytest.mark.slow
def test_many_users_that_come_and_go_never_see_two_daemons(stub: MpsStub, worker: Callable[..., Worker]) -> None:
    workers = [worker(linger=0.0) for _ in range(4)]
    for _ in range(5):
        for one in workers:
            one.ask("begin", "GPU-a")
        assert all(one.answer().endswith("/pipe") for one in workers)
        assert len(stub.living()) == 1
        for one in workers:
            one.do("end")
    for one in workers:
        one.kill()
    until(lambda: not stub.living() and not stub.keepers(), "all is gone")
