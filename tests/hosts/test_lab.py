"""The lab itself: hosts have networks, folders, processes and clocks of their own, and nothing is left of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.hosts.conftest import MakeLab
from tests.hosts.lab import ROOT, Host, Process

ECHO = """
import socket
listening = socket.create_server(("", 9000))
while True:
    connection, _ = listening.accept()
    while data := connection.recv(1 << 20):
        connection.sendall(data[:1])
    connection.close()
"""
ASK = """
import socket, sys, time
host, size, timeout = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
began = time.monotonic()
try:
    connection = socket.create_connection((host, 9000), timeout)
    connection.sendall(b"x" * size)
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 16):
        pass
    print(time.monotonic() - began)
except TimeoutError:
    print("timeout")
"""


def ask(host: Host, target: str, size: int = 1, timeout: float = 600) -> float | None:
    """Seconds until a host had an answer from another; None: it had none."""
    said = host.run(sys.executable, "-c", ASK, target, str(size), str(timeout)).strip()
    return None if said == "timeout" else float(said)


def serve(host: Host) -> Process:
    process = host.start(sys.executable, "-c", ECHO)
    ready = "import socket; socket.create_connection(('127.0.0.1', 9000))"
    for _ in range(600):
        if subprocess.run(host.command(sys.executable, "-c", ready), capture_output=True).returncode == 0:
            return process
    raise AssertionError(process.said)


def test_hosts_have_names_folders_and_processes_of_their_own(make_lab: MakeLab, shared: Path) -> None:
    lab = make_lab(2)
    one, two = lab
    one.run("sh", "-c", f"hostname > {shared}/name; echo private > /tmp/file; echo private > /dev/shm/file")
    assert two.run("cat", shared / "name") == "h1\n"
    assert two.run("sh", "-c", "ls /tmp /dev/shm /home | grep file || true") == ""
    sleeping = one.start("sleep", "1000")
    while [process.name() for process in one.processes("sleep 1000")] != ["sleep"]:  # it enters the host first
        assert sleeping.poll() is None, sleeping.said
        time.sleep(0.05)
    assert "sleep 1000" not in two.run("ps", "ax", "-o", "args")
    boot = Path("/proc/sys/kernel/random/boot_id")
    assert len({boot.read_text(), one.run("cat", boot), two.run("cat", boot)}) == 3
    before = one.run("cat", boot)
    one.reboot()
    assert sleeping.wait(60) != 0 and not one.processes()
    assert one.run("cat", boot) != before
    assert one.run("sh", "-c", "cat /tmp/file; ls /dev/shm") == "private\n"


def test_cables_are_cut_one_way_and_both_slow_and_lossy(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    one, two, three = lab
    serve(two)
    assert ask(one, "h2") is not None
    lab.cut("h2")
    assert ask(one, "h2", timeout=1) is None
    lab.heal("h2")
    lab.cut_one_way("h2", "h1")
    assert ask(one, "h2", timeout=1) is None and ask(three, "h2") is not None
    lab.heal()
    one.link(delay="200ms")
    seconds = ask(one, "h2")
    assert seconds is not None and seconds >= 0.4  # its two ways before the data
    one.link(delay=0, rate="10mbit")
    seconds = ask(one, "h2", 2_000_000)
    assert seconds is not None and seconds >= 1.4  # 1.6 s, less what the first queue holds
    before = lab.sent()
    one.link(rate=0, loss=0.05)
    assert ask(one, "h2", 2_000_000) is not None
    assert lab.sent()["h1"] - before["h1"] >= 2_000_000


def test_a_host_reaches_nothing_but_the_lab(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    routes = lab["h1"].run("ip", "-4", "route").split("\n")
    assert [route.split()[0] for route in routes if route] == ["10.31.0.0/24"]


def test_a_clock_is_ahead_and_jumps_while_time_goes_on(make_lab: MakeLab) -> None:
    lab = make_lab(1, clocks={"h1": 120.0})
    show = "import time\nfor _ in range(2): print(time.time(), time.monotonic(), flush=True); input()"
    command = lab["h1"].command(sys.executable, "-c", show)
    with subprocess.Popen(
        command, env=lab["h1"].environment({}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def look() -> tuple[float, float]:
            before = time.time(), time.monotonic()
            wall, monotonic = map(float, process.stdout.readline().split())  # type: ignore[union-attr]
            return wall - before[0], monotonic - before[1]

        ahead, _ = look()
        assert 119 < ahead < 720
        lab["h1"].clock = -3600.0
        process.stdin.write("\n")
        process.stdin.flush()
        ahead, monotonic = look()
        assert -3601 < ahead < -3000 and monotonic < 600
        process.stdin.write("\n")


def test_a_port_of_a_host_is_reached_from_here(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    port = lab["h1"].forward(9000)
    with socket.create_connection(("127.0.0.1", port)) as early:
        assert early.recv(1) == b""  # nobody listens there yet: no wait without end
    serve(lab["h1"])
    ask_here = [sys.executable, "-c", ASK.replace("9000", str(port)), "127.0.0.1", "1", "600"]
    assert float(subprocess.run(ask_here, check=True, capture_output=True, text=True).stdout) >= 0


def test_nothing_is_left_of_a_lab_whose_process_was_killed(make_lab: MakeLab, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.hosts.lab import Lab\n"
        f"lab = Lab(Path({str(tmp_path / 'other')!r}), hosts=2)\n"
        "lab['h1'].start('sleep', '4321')\nlab['h2'].start('sleep', '4321')\nprint('up', flush=True)\ntime.sleep(1000)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    below = psutil.Process(process.pid).children(recursive=True)
    hosts = [one for one in below if one.name() == "sleep"] + [one for one in below if one.name() == "sh"]
    assert len(hosts) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    _, alive = psutil.wait_procs(below, timeout=600)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
