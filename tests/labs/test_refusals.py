"""What the labs refuse, each with a sentence that says what was expected."""

import numpy as np
import pytest

import labkit
from labkit.errors import InputError
from labkit.labs import claims, compare, measure
from labkit.labs.presets import choose
from labkit.labs.results import fit, load

FIRST, SECOND, FIFTH = (
    "01_gradient_accumulation", "02_resnet50_migration", "05_dimension_reduction",
)  # fmt: skip
STORED = load("thor_race")
SETTINGS = [
    (FIRST, {"train_images": 60_001}, "train_images: expected an integer .* <= 60000"),
    (FIRST, {"micro_batch": 20801}, "micro_batch: expected at most train_images"),
    (FIRST, {"epoch": None}, "unknown parameter 'epoch'.*Did you mean 'epochs'"),
    (SECOND, {"warmup_epochs": 3}, "warmup_epochs: expected at most epochs 2, got 3"),
    ("04_adasum", {"workers": 6}, "and 8 updates of all of them with 40 micro-batches, got 6"),
    (FIFTH, {"components": 12}, "at least 13 snapshots for 12 .* got 12 from"),
    (FIFTH, {"saves_per_epoch": 101}, "saves_per_epoch: expected at most 100"),
    (FIFTH, {"second_batch_size": 201}, "at least 4 updates, got 3"),
]
CELL = {"preset": "smoke", "device": "CPU", "micro_step": 4}
CALLS = [
    *[(lambda lab=lab, named=named: choose(lab, "smoke", **named), message)
      for lab, named, message in SETTINGS],
    (lambda: choose("01_gradient_acumulation", "lab"), f"unknown lab .*Did you mean '{FIRST}'"),
    (lambda: choose(FIRST, "labb"), "unknown preset 'labb'; expected one of: smoke, lab, paper"),
    (lambda: labkit.open_lab(FIRST, CELL | dict.fromkeys(("epochs", "micro_batch"))),
     "expected micro_steps in the cell of parameters, got none. Did you mean 'micro_step'"),
    (lambda: claims.check(), "at least one"),
    (lambda: claims.check(("x", 1, "<1e-x")), "expected a bound such as .*, got '<1e-x'"),
    (lambda: compare.relative_error({}, {}), "actual: expected the shapes {}, at least one, got"),
    (lambda: compare.largest_differences({"a": np.zeros(1)}, {"a": np.zeros(3)}),
     r"the shapes {'a': \(3,\)}, at least one, got {'a': \(1,\)}"),
    (lambda: measure.peaks_mb("lenet", [32], 5), "batch: expected a multiple of micro_batch 5"),
    (lambda: load("thor_race", "nowhere"), "benchmarks/thor_race.py makes it"),
    (lambda: STORED.select(net="LeNet", epochs=7), "'epochs': 7}: it was not raced"),
    (lambda: STORED.select(frequencies=2), "unknown field 'frequencies'.*mean 'frequency'"),
    (lambda: fit({32: [100.0, 200.0]}), r"two batch sizes or more, got \[32\]"),
    (lambda: fit({32: [100.0], 64: [None]}), "expected a finite number > 0, got No"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_it_is_refused_in_one_sentence(call, message):
    with pytest.raises(InputError, match=message):
        call()
