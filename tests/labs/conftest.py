"""Record what the labs display, because no front end shows it."""

import pytest


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, as (data, options), in order."""
    displayed = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **options: displayed.append((data, options))
    )
    return displayed
