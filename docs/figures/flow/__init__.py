"""The data's way through each lab, as pictures: a module for each lab."""
