"""Training functions that harm the processes around them; no tests in here."""

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

AT_IMPORT = Path(__file__).open("rb")  # noqa: SIM115 (as a data set that a module opens once for all trials)


def dispatch(trial):
    globals()[trial.params["do"]](trial)


class Counter:
    def __init__(self, size=0):
        self.value = 0
        self.ballast = "x" * size

    def state_dict(self):
        return {"value": self.value, "ballast": self.ballast}

    def load_state_dict(self, state):
        self.value = state["value"]


def good(trial):
    trial.track(counter=Counter())
    for _ in trial.steps():
        time.sleep(trial.params.get("sleep", 0.0))
        trial.report(loss=trial.params.get("x", 0.5))


def poison(trial):
    """In a study: those with a large x end their zygote, the others are good."""
    if trial.params["x"] > trial.params.get("above", 0.8) and trial.target >= trial.params.get("from_target", 1):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    good(trial)


def _descriptors():
    found = [int(path.name) for path in Path("/proc/self/fd").iterdir()]  # and that of the listing itself
    return [number for number in found if number > 2 and Path(f"/proc/self/fd/{number}").is_symlink()]


def _write_to_all(data):
    for descriptor in _descriptors():
        try:
            os.write(descriptor, data)
        except OSError:
            pass


def garbage(trial):
    _write_to_all(b"\x10\x00\x00\x00 this is no message ")
    good(trial)


def endless_messages(trial):
    """Well-formed messages of the wrong kind, as fast as they can be written."""
    from hpo_core.training.child.messages import Cancel, _encoder

    body = _encoder.encode(Cancel(1, 2))
    while True:
        _write_to_all((len(body).to_bytes(4, "little") + body) * 1000)


def somebody_elses_report(trial):
    from hpo_core.model.trial import Outcome, Report
    from hpo_core.training.child.messages import Finished, _encoder

    body = _encoder.encode(Finished(Report(trial=999, attempt=999, outcome=Outcome.COMPLETED, metrics={"loss": 0.0})))
    _write_to_all(len(body).to_bytes(4, "little") + body)
    time.sleep(60)


def notes_descriptors(trial):
    (trial.folder / "fds").write_text(
        json.dumps({fd: str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in _descriptors()})
    )
    AT_IMPORT.seek(0)
    assert AT_IMPORT.read(3) == b'"""'
    good(trial)


def scribbles_on_the_board(trial):
    """Every shared anonymous page of this process gets what the parameter says."""
    values = {"nan": (-1, float("nan")), "inf": (2**62, float("inf")), "future": (5, time.monotonic() + 1e6)}
    data = struct.pack("<qd", *values[trial.params["value"]]) * 4
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " rw-s " in line and "/dev/zero" in line:
            ctypes.memmove(int(line.split("-")[0], 16), data, len(data))
    time.sleep(trial.params.get("then_sleep", 0))
    good(trial)


def forks(trial):
    """As a careless script does: both processes go on to the end of the function."""
    trial.track(counter=Counter())
    for _ in trial.steps():
        trial.report(loss=1.0)
        if os.fork() == 0:
            print("a copy")
    time.sleep(0 if os.getpid() == trial.params.get("pid") else 0.3)


_SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def daemons(trial):
    pids = [subprocess.Popen([sys.executable, "-c", _SLEEPER], start_new_session=True).pid]
    bare = {"PATH": os.environ["PATH"]}
    pids.append(subprocess.Popen([sys.executable, "-c", _SLEEPER], start_new_session=True, env=bare).pid)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            time.sleep(600)
        os.write(write, str(pid).encode())
        os._exit(0)
    pids.append(int(os.read(read, 20)))
    (trial.folder / "pids").write_text(" ".join(map(str, pids)))
    time.sleep(trial.params.get("then_sleep", 0))
    trial.report(loss=1.0)


def chatty(trial):
    """``lines`` lines of 100 bytes, some by a process of its own."""
    for number in range(trial.params["lines"]):
        print(f"{number:099d}")
    if trial.params.get("external"):
        subprocess.run([sys.executable, "-c", f"for i in range({trial.params['lines']}): print(f'{{i:099d}}')"])
    print("the last line")
    trial.report(loss=1.0)


def fills_study_disk(trial):
    with (trial.folder / "scratch").open("wb") as file:
        while True:
            file.write(b"x" * 65536)


def hides_the_failed_save(trial):
    """Its checkpoint cannot be written, and it catches what tells so."""
    trial.track(counter=Counter(2_000_000))
    try:
        for _ in trial.steps():
            trial.report(loss=1.0)
    except Exception as error:
        raise ValueError("something of mine") from error


def notes_environment(trial):
    (trial.folder / "environment").write_text(json.dumps(dict(os.environ)))
    parent = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    (trial.folder / "parent").write_bytes(parent)
    trial.report(loss=1.0)


def evaluation_environment(trial):
    trial.track(counter=Counter())
    Path(trial.params["note"]).write_text(json.dumps(dict(os.environ)))
    trial.report(loss=1.0)
