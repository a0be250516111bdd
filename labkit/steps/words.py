"""The words that options of every step may have. No MindSpore import: recipes read them too."""

TAILS = ("flush", "drop", "carry")
REDUCTION = ("mean", "sum")
PRECISION = ("O0", "O2")
NORMALISE = ("samples", "tokens", "steps")
NONFINITE = ("drop_micro", "drop_group", "propagate")
# Which off value label smoothing has: s / (C - 1), or s / C.
CONVENTIONS = ("mindspore", "pytorch")
LR_DECAY_MODES = ("steps", "poly", "cosine", "linear")
