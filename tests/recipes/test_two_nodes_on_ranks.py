"""Adasum's two scripts on two machines: to the end, and when one can no longer be reached.

The machines are network namespaces on this machine, joined by a virtual cable. Without the right to
create them the tests are skipped, and say what is missing.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.nets import resnet
from labkit.ranks import processes
from labkit.training import checkpoint
from tests.support.living import MARK, marked, wait_until
from tests.support.namespaces import ADDRESSES, machines
from tests.support.recipes import newest
from tests.support.shell_scripts import SIGNALS
from tests.support.step_cells import assert_bit_equal

pytestmark = pytest.mark.long

SCRIPTS = [Path(__file__).parents[2] / "scripts" / "adasum" / f"run_node{n}.sh" for n in (1, 2)]
MASTER = f"{ADDRESSES[0]}:8118"
SMALL = (
    "--depth 18 --image_size 32 --batch_size 4 --precision O0 --device_target CPU "
    "--num_parallel_workers 1 --node_size 1 --warmup_epochs 0 --lr_max 0.02 --loss_scale 1"
).split()
LOST = "rank 1 of 2, on another node, stopped answering: "
CUT_OFF = f"node 0 at {re.escape(MASTER)} cannot be reached [(][A-Z][a-z ]+[)]; rank 1 of 2 "
GAVE_UP = ": not every rank arrived in time; one has ended, or is behind (exit code 1)\n"
ENDED = f"node 0 at {MASTER} has ended: the call there says why; rank 1 of 2 cannot go on"
SECONDS = 90  # within which both end, whatever has happened to one of them
TOGETHER = 600  # to start, compile and train an epoch: 35 to 60 s, more than 300 on a busy machine


# Joins, and then spends minutes in a function written in C.
DEAF = """
import hashlib, signal, sys
import labkit
labkit.start("CPU", distribute=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("deaf", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""
LAUNCH = """
import sys, labkit
labkit.launch("deaf.py", workers=1, timeout=None, nodes=2, node_rank=int(sys.argv[1]),
              master=sys.argv[2], log_dir="logs")
"""


class Calls:
    """A command on each of two machines; machine n works in FOLDER/n."""

    def __init__(self, nodes, folder, commands):
        self.nodes, self.folder = nodes, folder
        own = os.environ | {
            "PYTHON": sys.executable,
            "DEVICE_NUM": "1",
            "MASTER": MASTER,
            MARK: str(folder),
        }
        own["PYTHONPATH"] = processes.python_path(os.environ.get("PYTHONPATH"))
        self.processes = []
        for machine, command in enumerate(commands):
            (folder / str(machine)).mkdir(exist_ok=True)
            with self._log(machine).open("w") as log:
                process = nodes.start(
                    machine,
                    command,
                    cwd=folder / str(machine),
                    env=own,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=lambda: [
                        signal.signal(number, signal.SIG_DFL) for number in SIGNALS
                    ],
                )
            self.processes.append(process)

    def said(self, machine):
        """What a script has printed so far."""
        return self._log(machine).read_text(errors="replace")

    def wait_until(self, condition):
        """Return once ``condition()`` is true, while both run."""
        wait_until(lambda: condition() or self._ended(), TOGETHER)
        assert not self._ended(), self.said(0) + self.said(1)

    def wait_until_it_trains(self):
        """Return once the first loss has been printed."""
        self.wait_until(lambda: "loss is" in self.said(0))

    def wait(self, seconds):
        """Return how many seconds each process continues to run from now."""
        began, ended = time.monotonic(), {}

        def look():
            for machine in self._ended():
                ended.setdefault(machine, time.monotonic() - began)
            return len(ended) == 2

        wait_until(look, seconds)
        return [ended[machine] for machine in (0, 1)]

    def codes(self):
        """Return the exit codes of both; check that nothing runs any more on either machine."""
        assert (self.nodes.processes(), marked(self.folder)) == ([], [])
        return [process.returncode for process in self.processes]

    def _log(self, machine):
        return self.folder / f"{machine}.log"

    def _ended(self):
        return [machine for machine, each in enumerate(self.processes) if each.poll() is not None]


@pytest.fixture
def train(digits, tmp_path):
    """A function of the number of epochs that starts Adasum's scripts, one rank per machine."""
    data = digits(20, 10)
    with machines() as nodes:

        def start(epochs):
            options = [data, *SMALL, "--epoch_size", str(epochs)]
            return Calls(nodes, tmp_path, [["sh", script, *options] for script in SCRIPTS])

        yield start


def weights(run):
    """Return the trainable weights in the newest checkpoint of a run folder, and its name."""
    path = newest(run)
    held = checkpoint.read(path)
    names = [parameter.name for parameter in resnet.resnet(18, 10).trainable_params()]
    return {name: held[name].asnumpy() for name in names}, path.name


@pytest.mark.usefixtures("runtime")
def test_both_train_to_the_end(train, tmp_path):
    """Their weights are equal: alone, each on its own images, they would differ."""
    training = train(epochs=2)
    training.wait(TOGETHER)
    said = [training.said(machine) for machine in (0, 1)]
    assert training.codes() == [0, 0], said
    held = []
    for machine, text in enumerate(said):
        assert "labkit: 1 rank on each of 2 machines by msrun" in text
        assert re.search(rf"^labkit: CPU .* rank {machine} of 2$", text, re.MULTILINE)
        run = tmp_path / str(machine) / "runs" / "adasum" / f"rank_{machine}"
        assert len((run / "records.csv").read_text().splitlines()) == 5
        held.append(weights(run))
    assert_bit_equal(held[0][0], held[1][0])
    assert held[0][1] == held[1][1] == "step-000000004.ckpt"
    assert "adasum over 2 workers (1 in each process, 2 ranks)" in said[0]
    assert said[0].count("epoch: 2 step: 2 loss is") == 1 and "top_1_accuracy" in said[0]


@pytest.mark.parametrize("machine", [0, 1])
def test_a_cable_that_is_pulled_ends_both_and_each_says_why(train, machine):
    training = train(epochs=500)
    training.wait_until_it_trains()
    assert_a_cut_ends_both(training, machine, "adasum: ")


def test_a_cable_that_is_pulled_while_ranks_are_in_a_function_in_c(tmp_path):
    """As during compilation: the exception of MindSpore's SIGTERM waits until the function ends."""
    with machines() as nodes:
        for machine in (0, 1):
            (tmp_path / str(machine)).mkdir()
            (tmp_path / str(machine) / "deaf.py").write_text(DEAF)
        command = [sys.executable, "-c", LAUNCH]
        calls = Calls(nodes, tmp_path, [[*command, str(machine), MASTER] for machine in (0, 1)])
        logs = [tmp_path / str(machine) / "logs" / f"worker_{machine}.log" for machine in (0, 1)]
        calls.wait_until(lambda: all(log.exists() and "deaf" in log.read_text() for log in logs))
        assert_a_cut_ends_both(calls, 1, "labkit.errors.WorkerFailed: ")


def assert_a_cut_ends_both(calls, machine, heading):
    """Cut one machine off; each ends in time, with an error that says whom it cannot reach.

    The error follows ``heading``.
    """
    calls.nodes.cut(machine)
    seconds = calls.wait(SECONDS)
    print("seconds from the cut to each machine's end:", *(f"{each:.1f}" for each in seconds))
    assert calls.codes() == [1, 1]
    said = [calls.said(number) for number in (0, 1)]
    print(*(line for text in said for line in text.splitlines() if heading in line), sep="\n")
    assert heading + LOST in said[0], said[0]
    assert re.search(re.escape(heading) + CUT_OFF, said[1]), said[1]


@pytest.mark.parametrize("machine", [0, 1])
def test_sigterm_to_one_script_ends_the_other_too(train, machine):
    training = train(epochs=500)
    training.wait_until_it_trains()
    training.processes[machine].send_signal(signal.SIGTERM)
    seconds = training.wait(SECONDS)
    print("seconds from SIGTERM to each machine's end:", *(f"{each:.1f}" for each in seconds))
    codes = training.codes()
    assert codes[machine] == -signal.SIGTERM and codes[1 - machine] == 1
    assert seconds[machine] < 20
    said = training.said(1 - machine)
    # The scheduler does not miss a rank that signed off before it ended.
    assert any(words in said for words in ((GAVE_UP, LOST) if machine else (ENDED,))), said
