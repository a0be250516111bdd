"""Update stages: one technique, one file."""
