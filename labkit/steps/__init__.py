"""A step is a gradient stage, an update stage and the state between them: see README.md."""
