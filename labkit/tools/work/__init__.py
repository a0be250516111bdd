"""Make and update a learner's own copies of the notebooks, and check the answers in them."""
