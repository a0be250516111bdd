"""Every reader of the campaign by name."""

from tests.campaigns import archives, runs, settings, weights

READERS = archives.READERS | weights.READERS | runs.READERS | settings.READERS
