"""Finished and running labs, read back from their folders. No MindSpore import.

read        folders to plain data, whatever is missing or damaged in them
reference   headline metrics against those of the stored run, labkit/tools/reports/labs.json
difference  two runs against each other: `labkit compare`
curves      rows of records to lines in a picture (SVG), and to lines of text
page        everything on one HTML page, with the tables of `tables`: `labkit report`
notebook_page, maths  an executed notebook as HTML that needs no network
live        curves of a run that is still going: `labkit attach`, `labkit.attach`
"""
