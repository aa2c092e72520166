"""A real Slurm of one node in a folder of its own: munged, slurmctld and slurmd on free ports of 127.0.0.1.

Needs Debian's packages ``slurm-wlm`` and ``munge``; it runs as whoever starts it, and leaves a Slurm of this machine
alone.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = "apt-get install slurm-wlm munge"
NODE = "node"
_DAEMONS = ("munged", "slurmctld", "slurmd")
_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SchedulerParameters=batch_sched_delay=1,sched_interval=5
KillWait=5
MinJobAge=300
EnforcePartLimits=ALL
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 \
RealMemory=64000 State=UNKNOWN
PartitionName=debug Nodes={node} Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes={node} MaxTime=1 State=UP
PartitionName=lab Nodes={node} AllowAccounts=lab State=UP
"""


def missing_tools() -> list[str]:
    """What of Slurm and munge is not installed here."""
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM_FOLDERS}"
    return [tool for tool in (*_DAEMONS, "sbatch", "squeue", "scontrol") if shutil.which(tool, path=path) is None]


class OneNodeSlurm:
    """Slurm's daemons as children of this process; ends them by their ids, and the jobs before.

    Partitions: ``debug`` (the default), ``short`` (one minute at most), ``lab`` (for the account ``lab`` alone).

    Args:
        folder: new and empty, its path below 80 characters, for a Unix socket lies in it.
        cpus: of the node; more than the machine has are fine.
    """

    def __init__(self, folder: Path, cpus: int = 4) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        controller_port, node_port = free_ports(2)
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(mode=0o700)
        key = folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        self.conf.write_text(
            _CONFIGURATION.format(
                folder=folder,
                user=getpass.getuser(),
                host=socket.gethostname().partition(".")[0],
                node=NODE,
                cpus=cpus,
                controller_port=controller_port,
                node_port=node_port,
            )
        )

    @property
    def environment(self) -> dict[str, str]:
        """What makes ``sbatch`` and its like talk to this Slurm."""
        path = f"{os.environ.get('PATH', '')}:{_SYSTEM_FOLDERS}"
        return {"SLURM_CONF": str(self.conf), "PATH": path}

    def start(self, seconds: float = 120.0) -> None:
        munge = self.folder / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._start("munged", "--foreground", "--force", *(f"--{name}={munge / file}" for name, file in files.items()))
        self._wait(lambda: (munge / "socket").exists(), "munged made no socket", seconds)
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D", "-N", NODE)
        self._wait(lambda: self.node_state() == "idle", "the node is not idle", seconds)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            if self.jobs():
                self.call("scancel", "--full", "--user", getpass.getuser())
                self._wait(lambda: not self.jobs(), "jobs did not end", 60)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()

    def call(self, *command: str) -> str:
        """Output of one of Slurm's commands.

        Raises:
            RuntimeError: it failed; with what it said.
        """
        done = subprocess.run(
            command, env=os.environ | self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def jobs(self, state: str = "all") -> list[str]:
        lines = [line.split() for line in self.call("squeue", "--noheader", "--format=%i %T").splitlines()]
        return [job for job, found in lines if state in ("all", found)]

    def node_state(self) -> str:
        """Such as idle, mixed, alloc, drain, drng (draining); empty while the controller does not answer."""
        with contextlib.suppress(RuntimeError):
            return self.call("sinfo", "--noheader", "--partition=debug", "--format=%t").strip()
        return ""

    def _start(self, daemon: str, *arguments: str) -> None:
        with (self.folder / f"{daemon}.out").open("ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    [daemon, *arguments], env=os.environ | self.environment, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=output, start_new_session=True,
                )
            )  # fmt: skip

    def _wait(self, condition: Callable[[], bool], otherwise: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            gone = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if gone or time.monotonic() > deadline:
                logs = "\n".join(f"{file}: {file.read_text()[-1000:]}" for file in self.folder.glob("*.log"))
                raise RuntimeError(f"Slurm: {otherwise}; ended: {gone}\n{logs}")
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
