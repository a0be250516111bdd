"""Programs on ranks: ``launch`` starts, watches and ends them, and explains their failures."""
