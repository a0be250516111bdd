"""What the race of Adasum, mean and sum trains: rates, workers, variants; and the same in small.

A reduction's learning rates are multiples of the single-worker rate. The sum of N vectors is N
times their mean, and the moves of Momentum grow with the rate, so the sum at a rate is the mean at
16 times that rate: its multiples are smaller.
"""

SEEDS = (1, 2, 3)

PLANS = {
    "full": {
        "seeds": SEEDS,
        "tuning_seed": 100,
        "single": {
            "Momentum": (0.003, 0.01, 0.03, 0.1),
            "SGD": (0.03, 0.1, 0.3),
            "Adam": (0.0003, 0.001, 0.003),
        },
        "multiples": {
            "adasum": (0.5, 1, 2, 4),
            "mean": (1, 2, 4, 8),
            "sum": (0.125, 0.25, 0.5, 1),
        },
        "workers": (2, 4, 8, 32),
        "workers_seeds": SEEDS[:1],
        "optimizer_seeds": SEEDS[:1],
        "variants": ({"on": "gradients"}, {"scope": "network"}),
        "epochs": 2,
        "points": 6,
        "images": {"held_out": 10_000, "train": None, "test": None},
    },
    # To see the program run: seconds, and no meaning.
    "quick": {
        "seeds": SEEDS[:1],
        "tuning_seed": 100,
        "single": {"Momentum": (0.01, 0.03), "Adam": (0.001,)},
        "multiples": {"adasum": (1, 2), "mean": (1,), "sum": (1,)},
        "workers": (2,),
        "workers_seeds": SEEDS[:1],
        "optimizer_seeds": SEEDS[:1],
        "variants": ({"scope": "network"},),
        "epochs": 1,
        "points": 2,
        "images": {"held_out": 64, "train": 1088, "test": 64},
    },
}
