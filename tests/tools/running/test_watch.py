"""What a lab may take if nobody says otherwise."""

from types import SimpleNamespace

import pytest

from labkit.tools.running import watch


@pytest.mark.parametrize(("left", "share"), [(None, 18e9), (10e9, 9e9), (40e9, 18e9), (0, 0)])
def test_nine_tenths_of_what_machine_and_container_have(monkeypatch, left, share):
    monkeypatch.setattr(watch, "left_in_container", lambda: left)
    monkeypatch.setattr(watch.psutil, "virtual_memory", lambda: SimpleNamespace(available=20e9))
    assert watch.free_memory() == pytest.approx(share)
