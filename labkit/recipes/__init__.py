"""Full training programs, one per technique, for one device or many."""
