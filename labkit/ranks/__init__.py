"""Programs on ranks: started by ``launch``, watched, ended, and their failures named."""

from labkit.ranks.launch import Launched, launch

__all__ = ["Launched", "launch"]
