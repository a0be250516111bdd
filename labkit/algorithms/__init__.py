"""The techniques: THOR, Adasum, and training in a subspace."""
