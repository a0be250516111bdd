"""What the race of two-stage training trains, and the same in small.

settings  stage one: its batch, rate and epochs, and start_epoch and saves_per_epoch of
          ``labkit.algorithms.subspace.snapshots.Snapshots``, which leave 40 snapshots
compare   all methods side by side, for each stage one; sweep: changes of the search. Arguments of
          ``labkit.labs.results.subspace_plan.setting_of``; each with all seeds
more      the ends of stage one are far apart from seed to seed: some methods with more_seeds
epochs    of stage two; points: how often it is judged
rounds    in which the times of updates are taken, in turns

Rates of the large batch: that of stage one, and that times the square root of the ratio of the
batches, and times the ratio. Rates of projected SGD, momentum 0.9: that of stage one, 0.1 and 1.
"""

from labkit.labs.results.subspace_plan import LARGE_BATCH, rounded

SEEDS = (1, 2, 3)
_MORE_SEEDS = (4, 5, 6, 7, 8)
_MORE = ("stage_one", "same_rate", "tenth", "to_zero", "average", "projected_bfgs")
_SETTINGS = {
    "batch 8": {
        "batch": 8,
        "learning_rate": 0.01,
        "epochs": 6,
        "start_epoch": 2,
        "saves_per_epoch": 8,
    },
    "batch 32": {
        "batch": 32,
        "learning_rate": 0.02,
        "epochs": 14,
        "start_epoch": 5,
        "saves_per_epoch": 4,
    },
}


def _compare(setting, noise=0.0):
    own = _SETTINGS[setting]
    rate, ratio = own["learning_rate"], LARGE_BATCH / own["batch"]
    large = (rate, rounded(rate * ratio**0.5), rounded(rate * ratio))
    found = [{"method": name} for name in ("stage_one", "same_rate", "tenth", "to_zero")]
    found += [{"method": "large_batch", "learning_rate": one} for one in large]
    found += [{"method": "average"}]
    found += [{"method": "projected_sgd", "learning_rate": one} for one in (rate, 0.1, 1.0)]
    found += [{"method": "projected_bfgs"}]
    return [{"setting": setting, "noise": noise} | one for one in found]


def _search(**changes):
    return {"method": "projected_bfgs"} | changes


_REQUIRED = _compare("batch 8") + _compare("batch 32")
_SWEEP = [
    *(_search(trials=trials) for trials in (1, 2, 5)),
    *(_search(components=components) for components in (8, 16, 38)),
    *(_search(start=start) for start in ("first", "initial")),
    _search(trials=2, failure="rollback"),
    _search(failure="rollback"),
    _search(alpha=1.024),
    # Where searches fail: small batches.
    _search(batch=32),
    _search(batch=32, failure="rollback"),
    *(_search(batch=32, trials=2, failure=failure) for failure in ("reset", "rollback")),
    _search(setting="batch 32", batch=32),
]

_FULL = {
    "settings": _SETTINGS,
    "seeds": SEEDS,
    "compare": _REQUIRED + _compare("batch 8", noise=0.3) + _compare("batch 32", noise=0.3),
    "sweep": _SWEEP,
    "more_seeds": _MORE_SEEDS,
    "more": [{"method": name} for name in _MORE],
    "epochs": 2,
    "points": 4,
    "rounds": 5,
    "images": {"held_out": 0, "train": 5000, "test": None},
}
_SMALL = {"epochs": 2, "start_epoch": 1, "saves_per_epoch": 20}
PLANS = {
    "all": _FULL,
    "required": _FULL | {"compare": _REQUIRED, "sweep": [], "more": []},
    # To see the program run: seconds, and no meaning.
    "quick": _FULL
    | {
        "settings": {"batch 8": _SETTINGS["batch 8"] | _SMALL},
        "seeds": SEEDS[:1],
        "compare": [
            {"method": "stage_one"},
            {"method": "same_rate"},
            {"method": "average"},
            {"method": "projected_sgd"},
            _search(),
        ],
        "sweep": [_search(start="initial")],
        "more": [],
        "rounds": 1,
        "images": {"held_out": 0, "train": 500, "test": 64},
    },
}
