"""Renew the stored headline numbers with which reports compare those of a run.

    labkit run --preset lab
    python benchmarks/reference_runs.py runs/latest

Kinds and amounts of the tolerances, and their reasons, stay as labkit/tools/headlines.json has
them: they come from several seeds. A value outside its tolerance is printed, and stored all the
same.
"""

import json
import sys
import time
from pathlib import Path

from labkit.base.files import write_json
from labkit.tools.report import HEADLINES, judged, read

stored = json.loads(HEADLINES.read_text("utf-8"))
(labs,) = read([Path(sys.argv[1])]).values()
for results in labs.values():
    entry = stored.get(results["preset"], {}).get(results["lab"])
    if entry is None or results["status"] != "passed":
        print(f"{results['lab']}: left out ({results['status']}, or not stored before)")
        continue
    for name, value, before, tolerance, verdict in judged(results):
        if verdict == "outside":
            print(f"{results['lab']}: {name} is {value}, was {before} {tolerance}")
    entry |= {name: results[name] for name in ("git", "versions", "device", "parameters")}
    entry["date"] = time.strftime("%Y-%m-%d")
    for name, each in entry["metrics"].items():
        each["value"] = results["metrics"].get(name, each["value"])
write_json(HEADLINES, stored, "the stored numbers")
