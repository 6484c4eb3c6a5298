"""A stopwatch tells what a block took from what the machine took."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.harness.stopwatch import Stopwatch

PAUSE = """
import os, signal, sys, time
time.sleep(0.1)
os.kill(int(sys.argv[1]), signal.SIGSTOP)
time.sleep(0.5)
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""


def test_a_block_of_a_process_that_runs_takes_what_it_took():
    took = []
    for _ in range(5):  # it may stand still in one of them
        with Stopwatch() as stopwatch:
            time.sleep(0.1)
        assert stopwatch.seconds >= 0.1
        assert stopwatch.running <= stopwatch.seconds
        took.append(stopwatch.running)
    assert max(took) >= 0.1


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
def test_what_a_process_stands_still_for_is_no_time_of_its_own():
    with Stopwatch() as stopwatch:
        subprocess.run([sys.executable, "-c", PAUSE, str(os.getpid())], check=True)
    assert stopwatch.seconds - stopwatch.running > 0.4
