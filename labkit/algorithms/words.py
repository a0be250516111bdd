"""The words that options of Adasum and of the subspace search may have. No MindSpore import."""

ADASUM_REDUCTIONS = ("adasum", "mean", "sum")
ADASUM_ON = ("updates", "gradients")
ADASUM_SCOPES = ("layer", "network")
# Stages that cannot carry a part of an update into the next epoch.
WHOLE_TAILS = ("flush", "drop")

SEARCH_METHODS = ("bfgs", "sgd")
# What B is before its first pair, and what a failed search leaves.
SEARCH_STARTS = ("identity", "scaled")
SEARCH_FAILURES = ("reset", "rollback")
