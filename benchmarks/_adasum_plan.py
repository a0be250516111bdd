"""What the race of Adasum, mean and sum trains, and the same in small.

single       optimizer -> learning rates that are tried with one worker
tuning_seed  of everything that is judged by held-out images
tune, race   changes of the setting "Adasum of 16 workers' moves, Momentum, at the single-worker
             rate"; ``multiple`` of that rate. Each of ``race`` has its seeds
epochs       passes of all workers together; points: how often a training is judged

The sum of N vectors is N times their mean, and the moves of Momentum grow with the rate: the sum at
a rate is the mean at 16 times that rate. Of the stored trainings, the mean at 0.12 and the sum at
0.0075, seed 1, have losses of 2.2978665 at update 39, equal to 2e-8; rounding parts them later.
"""

SEEDS = (1, 2, 3)
_FIRST = SEEDS[:1]


def _sweep(reduction, *multiples):
    return [{"reduction": reduction, "multiple": multiple} for multiple in multiples]


def _workers(*counts):
    return [{"workers": n, "reduction": name} for n in counts for name in ("adasum", "mean")]


# Adasum at twice the rate: its own one, by the tuning.
_REQUIRED = _sweep("adasum", 1, 2) + _sweep("mean", 1, 2, 4, 8) + _sweep("sum", 1)
_GRADIENTS = {"on": "gradients"}
_BESIDE = [
    *_sweep("adasum", 0.5),
    *_sweep("sum", 0.25),
    {"workers": 1},
    *_workers(2, 4, 8, 32),
    *({"workers": n, "reduction": "sum"} for n in (4, 8)),
    {"scope": "network"},
]

PLANS = {
    "full": {
        "single": {"Momentum": (0.003, 0.01, 0.03, 0.1)},
        "tuning_seed": 100,
        "tune": _sweep("adasum", 0.5, 1, 2) + _sweep("mean", 1, 2, 4, 8),
        "race": [
            *((change, SEEDS) for change in [*_REQUIRED, _GRADIENTS]),
            *((change, _FIRST) for change in _BESIDE),
        ],
        "epochs": 2,
        "points": 6,
        "images": {"held_out": 10_000, "train": None, "test": None},
    },
    # To see the program run: seconds, and no meaning.
    "quick": {
        "single": {"Momentum": (0.03,)},
        "tuning_seed": 100,
        "tune": _sweep("adasum", 1),
        "race": [
            (change, _FIRST)
            for change in _sweep("adasum", 1) + _sweep("mean", 1) + _sweep("sum", 1)
        ],
        "epochs": 1,
        "points": 2,
        "images": {"held_out": 64, "train": 1088, "test": 64},
    },
}
