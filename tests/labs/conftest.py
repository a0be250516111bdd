"""What the labs display is kept: there is no front end that would show it."""

import pytest


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, as (data, options), one behind the other."""
    displayed = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **options: displayed.append((data, options))
    )
    return displayed
