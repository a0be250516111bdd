"""Update stages: one technique, one file."""

# Why the host must see each micro-batch. It stands here, where no MindSpore is imported, because
# the recipes read it.
THOR_ON_HOST = (
    "THOR has a graph that gathers factors and one that does not; the host chooses one of them for "
    "each micro-batch, and inverts the factors before the update"
)
