"""The child of a campaign: calls the doors of one reader, and says for each input how that ended.

    python worker.py READER < requests > answers

A request is a JSON line with the folder of an input and a folder to write to; an answer one with
``kind`` ("result" of at least one door, "refused" or "failure"), ``text``, ``seconds`` of
computing behind the slowest door, and ``memory``, how many bytes the process has at most held above
what it held when it began.
"""

import json
import os
import resource
import sys
import traceback
from pathlib import Path

ROOM = 4 << 30  # bytes of address space above the base: what is judged is what was really held
LONGEST = 1000  # letters of a message


def main() -> None:
    """Answer requests until there are none."""
    asked, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    reader = _table()[sys.argv[1]]
    if reader.heavy:
        import mindspore  # noqa: F401
        import torch  # noqa: F401
    base = None
    for line in asked:
        folder, out = map(Path, json.loads(line))
        if base is None:
            base = _base()
        answer = _judged(reader, folder, out)
        answer["memory"] = _held() - base
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _table():
    from tests.campaigns.table import READERS

    return READERS


def _base() -> int:
    """Return the bytes held now, and let the address space grow by ``ROOM`` and no further."""
    pages = Path("/proc/self/statm").read_text().split()
    size = int(pages[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return _held()


def _held() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _judged(reader, folder: Path, out: Path) -> dict:
    from labkit.errors import InputError

    texts, slowest = [], 0.0
    for door in reader.doors:
        before, failure = _seconds(), None
        try:
            door(folder, out)
        except InputError as error:
            texts.append(text := str(error))
            if len(text.splitlines()) != 1 or len(text) > LONGEST:
                failure = f"a message of {len(text)} letters: {text[:2000]}"
        except BaseException:
            failure = traceback.format_exc()[-3000:]
        slowest = max(slowest, _seconds() - before)
        if failure is not None:
            return {"kind": "failure", "text": failure, "seconds": slowest}
    kind = "refused" if len(texts) == len(reader.doors) else "result"
    return {"kind": kind, "text": "; ".join(texts)[:3000], "seconds": slowest}


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
