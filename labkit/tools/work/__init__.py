"""A learner's own copies of the notebooks: made, brought up to date, and looked at for answers."""
