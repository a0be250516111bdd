"""Reports on finished and running labs, read from their folders. No MindSpore import.

read        folders as plain data, whatever is missing or damaged in them
reference   headline metrics compared with the stored run's, labkit/tools/reports/labs.json
difference  two runs compared with each other: `labkit compare`
curves      rows of records as curves in a picture (SVG) and as text
page        everything on one HTML page, with the tables of `tables`: `labkit report`
notebook_page, maths  an executed notebook as HTML that needs no network
live        curves of a run that is still running: `labkit attach`, `labkit.attach`
"""
