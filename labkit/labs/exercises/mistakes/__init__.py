"""What learners answer wrongly and the hint that each answer gets, one file a lab.

HINTS: exercise -> pairs of a wrong function, with the exercise's arguments, and its hint.
"""
