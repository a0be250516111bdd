"""Small programs that a notebook starts on ranks of their own."""
