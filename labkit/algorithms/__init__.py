"""The techniques' algorithms, and values of their options that recipes read without MindSpore."""

ADASUM_REDUCTIONS = ("adasum", "mean", "sum")
ADASUM_ON = ("updates", "gradients")
ADASUM_SCOPES = ("layer", "network")
# ``tail`` of stages that cannot carry a part of an update into the next epoch.
WHOLE_TAILS = ("flush", "drop")
SEARCH_METHODS = ("bfgs", "sgd")
# What happens to B after a failed search.
SEARCH_FAILURES = ("reset", "rollback")

# Why the host must see each micro-batch, so that no data set can be sunk into the graph.
THOR_ON_HOST = "THOR has two graphs, and inverts factors between them: the host chooses each time"
ADASUM_ON_HOST = "Adasum has a second graph, for which the host asks after each micro-batch"
SUBSPACE_ON_HOST = "an update in the subspace is several graphs, and the host decides between them"
