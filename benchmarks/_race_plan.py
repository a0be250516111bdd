"""Plans of the race of THOR against Momentum: grids and sweeps, at full and at small size."""

from labkit.labs.results.races import rounded

TUNING_SEED, SEEDS = 100, (1, 2, 3)
TARGETS = (0.98, 0.985, 0.99)
FREQUENCY = 10

# Equally many settings for both, six on LeNet and four on ResNet, times the lengths of the cosine
# in epochs. THOR has two numbers to choose and so a coarser grid over each: where the damping
# outweighs the curvature, rate / damping is the rate of plain Momentum, so both grow together. The
# ranges come from single trainings on the same held-out images, 30 of Momentum and 10 of THOR.
_GRID = {
    "LeNet": {
        "Momentum": [{"learning_rate": rate} for rate in (0.02, 0.03, 0.04, 0.06, 0.08, 0.12)],
        "THOR": [
            {"learning_rate": rate, "damping": damping, "frequency": FREQUENCY}
            for damping, rates in ((0.3, (0.06, 0.12)), (1.0, (0.2, 0.4)), (3.0, (0.6, 1.2)))
            for rate in rates
        ],
    },
    "ResNet": {
        "Momentum": [{"learning_rate": rate} for rate in (0.03, 0.06, 0.12, 0.24)],
        "THOR": [
            {"learning_rate": rate, "damping": damping, "frequency": FREQUENCY}
            for rate, damping in ((0.03, 0.3), (0.1, 0.3), (0.1, 1.0), (0.3, 1.0))
        ],
    },
}

# The learning rate changes in proportion to the damping: rate / damping is constant.
IN_PROPORTION = "damping and rate"
_DAMPINGS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Options of the tuned THOR, changed one at a time. A trace rule is [refresh, freeze].
_VARIED = {
    "damping": _DAMPINGS,
    IN_PROPORTION: _DAMPINGS,
    "frequency": (1, 5, 10, 50, 100),
    "trace_rule": ([0.01, 0.001], [0.1, 0.001], [0.3, 0.01]),
    "factor_decay": (0.95,),
    "damping_split": ("pi",),
    "split": (32, None),
    "bias": ("plain",),
    "formulas": ("upstream_gpu",),
}


def sweeps(tuned: dict, varied: dict) -> list[tuple[str, object, dict]]:
    """Return (option, its value, the whole setting) of each training of the sweeps.

    Each is the setting ``tuned`` with one option changed; the tuned value is among its values.
    """
    trainings = []
    for name, values in varied.items():
        for value in values:
            setting = tuned | {"damping" if name == IN_PROPORTION else name: value}
            if name == IN_PROPORTION:
                rate = tuned["learning_rate"] * value / tuned["damping"]
                setting["learning_rate"] = rounded(rate)
            trainings.append((name, value, setting))
    return trainings


# tune_for: settings are tuned for the fewest updates to this accuracy on held-out training images,
# which are harder than the test set: Momentum never reached 98.5 % on them within three epochs.
PLANS = {
    "all": {
        "grid": _GRID,
        "lengths": {"LeNet": (1.5, 2, 3), "ResNet": (1,)},
        "tune_for": 0.98,
        "seeds": SEEDS,
        "sweep_net": "LeNet",
        "varied": _VARIED,
        "sweep_updates": 390,
        "every": 39,
        "images": {"held_out": 10_000, "train": None, "test": None},
        "rounds": 5,
        "turn": 50,  # updates; a multiple of the frequency, so that refreshes count
    },
    # To check that the program runs: takes a minute; the results mean nothing. Most of it is
    # compilation, repeated for every training: so LeNet is trained once, a dense layer replaces it
    # where it shows the same, and only the last timed contestant compiles the graph between
    # refreshes.
    "quick": {
        "grid": {
            net: {
                "Momentum": [{"learning_rate": 0.05}],
                "THOR": [{"learning_rate": 0.1, "damping": 1.0, "frequency": 1}],
            }
            for net in ("LeNet", "dense")
        },
        "lengths": {"LeNet": (1,), "dense": (1, 2)},
        "tune_for": 0.98,
        "seeds": SEEDS[:1],
        "sweep_net": "dense",
        "varied": {IN_PROPORTION: (0.3,), "trace_rule": ([0.1, 0.001],)},
        "sweep_updates": 3,
        "every": 2,
        "images": {"held_out": 128, "train": 512, "test": 200},
        "rounds": 1,
        "turn": 2,
    },
}
