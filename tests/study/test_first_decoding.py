"""The first entries and reports that a process reads may come in several threads at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_READ = """\
import sys, threading
from hpo_core.journal.codec import decode_entry
from hpo_core.training.request import decode_report, encode_report
from hpo_core.model.trial import Report

entry = sys.stdin.readline()
report = encode_report(Report(trial=0, attempt=0, outcome="completed", metrics={"loss": 1.0}))
together, read = threading.Barrier(8), []

def decode():
    together.wait()
    read.append((decode_entry(entry), decode_report(report)))

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(len(read) != 8)
"""


def test_threads_that_decode_the_first_entry_together_do_not_crash() -> None:
    """msgspec crashed the process in every second case: several processes at once, for one of them may be lucky."""
    entry = (ROOT / "tests/golden/asha-shared-format-1.jsonl").read_text().partition("\n")[0]
    tries = [
        subprocess.Popen(
            [sys.executable, "-c", _READ], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(2)
    ]
    said = [one.communicate(entry, timeout=600) for one in tries]
    assert [one.returncode for one in tries] == [0] * 2, said
