"""Ports of the loopback address."""

from labkit.ranks.plan import held_port


def free_port() -> int:
    """Return a port that nothing listens on at this moment."""
    with held_port() as port:
        return port
