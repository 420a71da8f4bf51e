import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from hullo.lab.data.ilsvrc2012.workers import available_cores, worker_processes


def test_work_runs_in_processes_that_end_afterwards():
    with worker_processes(1) as pool:
        worker = pool.submit(os.getpid).result()
        assert worker != os.getpid()
        assert pool.submit(pow, 2, 10).result() == 1024
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_busy_workers_end_when_the_block_raises():
    with contextlib.suppress(KeyboardInterrupt), worker_processes(1) as pool:
        worker = pool.submit(os.getpid).result()
        unfinished = pool.submit(time.sleep, 60)
        raise KeyboardInterrupt
    assert isinstance(unfinished.exception(), BrokenProcessPool)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


PROCESS = """
import time
from hullo.lab.data.ilsvrc2012.workers import worker_processes
if __name__ == "__main__":
    try:
        with worker_processes(2):
            print("begun", flush=True)
            time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_workers_ignore_sigint_even_while_starting(tmp_path):
    (tmp_path / "command.py").write_text(PROCESS)
    command, pipe = [sys.executable, str(tmp_path / "command.py")], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.5)  # the workers are importing now
        os.killpg(process.pid, signal.SIGINT)
        message = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, *message) == (0, "interrupted\n", "")


def test_at_least_one_core_is_available():
    assert 1 <= available_cores() <= os.cpu_count()
