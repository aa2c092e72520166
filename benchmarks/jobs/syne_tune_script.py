"""One trial under Syne Tune's local backend."""

import argparse
import time

from slots import SECONDS, note
from syne_tune import Reporter

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float)
    parser.add_argument("--log", type=str)
    given, _ = parser.parse_known_args()
    start = time.time()
    time.sleep(SECONDS)
    Reporter()(epoch=1, loss=given.x)
    note(given.log, start, time.time())
