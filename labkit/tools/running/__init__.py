"""Labs executed headlessly: `labkit run` and `labkit sweep`, limits, resuming, progress.

request    the requested run, checked as a whole; the points of a sweep
runner     labs one after the other; sweep: runs of one lab, several at once
execution  one notebook, run by papermill in its own kernel; watch: its limits of time and memory
events     progress reports during a run
digests    digests of all inputs that determine a lab's output, to skip labs that are up to date
folders    run.json and results.json as the runner writes them; sweep_table: a sweep's results
"""
