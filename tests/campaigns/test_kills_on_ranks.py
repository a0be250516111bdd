"""A short part of the campaign of kills; ``python -m tests.campaigns.kills`` runs all of it."""

import pytest

from tests.campaigns.kills import campaign

pytestmark = pytest.mark.long


@pytest.mark.parametrize("kind", ["subspace", "two ranks"])
def test_killed_at_random_it_ends_as_in_peace(tmp_path, kind):
    assert sum(campaign([kind], kills=2, minutes=20, seed=3, folder=tmp_path).values()) == 2
