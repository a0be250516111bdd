"""All readers of the campaign by name."""

from tests.campaigns import archives, runs, settings, trainings, weights

READERS = archives.READERS | weights.READERS | trainings.READERS | runs.READERS | settings.READERS
