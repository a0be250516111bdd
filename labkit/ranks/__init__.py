"""Programs on ranks: started by ``launch``, watched, ended, and their failures named."""
