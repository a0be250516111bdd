"""Labs executed headlessly: `labkit run` and `labkit sweep`, limits, resuming, progress.

request    what is asked for, checked as a whole; the points of a sweep
runner     labs one after the other; sweep: runs of one lab, several at once
execution  one notebook by papermill in a kernel of its own, under a watch (watch)
events     what happens, as it happens
digests    everything that decides what a lab prints, so that nothing is executed for nothing
folders    run.json and results.json as the runner writes them; sweep_table: a sweep's results
"""
