"""Labs executed headlessly: `labkit run` and `labkit sweep`, limits, resuming, progress."""
