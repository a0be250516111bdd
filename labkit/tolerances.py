"""Every tolerance that a test or a notebook compares with, and why it is what it is.

Use them by name: ``assert_allclose(came, expected, **TOLERANCE["one float32 gradient"])``.
Each is the bound of the requirement or about ten times the largest error measured, whichever is
smaller; the measured figures (two cores, MindSpore 2.10 on CPU) stand beside them.
"""

TOLERANCE = {
}
