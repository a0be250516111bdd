"""Check answers, each in its own process, which is ended in time with everything that it started.

This limits the harm of mistakes: endless loops, floods of output, memory, leftover processes, full
disks. It is not a sandbox. An answer runs with the rights of the user who checks it: it can read
and remove their files and, if written to deceive, report that it passed. Check only your own
answers.

    python -m labkit.tools.work.judge < request.json

The request: {"folder", "seconds", "answers": [{"name", "module", "code", "attempt", ...}]}. The
reply: one JSON object per line for each answer, in order: {"state", "message"}. This needs Linux.
"""

import contextlib
import ctypes
import importlib
import io
import json
import linecache
import os
import resource
import select
import signal
import sys
import time
import traceback

import psutil

from labkit.ranks.processes import signal_name

# An answer's imports may take long on a busy machine; MindSpore's alone took 3 to 12 s.
_PREPARATION = 60.0
_DATA = 2 << 30  # 2 GiB of private memory, in bytes; an import of MindSpore takes 0.8
STATES = ("passed", "wrong", "not attempted", "error")
_ENDING = 10.0  # seconds within which all that an answer started must have ended
_KEPT = 20_000  # characters of an answer's output
_WRITTEN = 1 << 20  # bytes in each file that an answer writes
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # options of prctl


def main() -> None:
    """Read the request from standard input, and print a verdict for each answer."""
    request = json.load(sys.stdin)
    # Processes that an answer leaves become this process's children, whatever session they are in.
    _prctl(_SUBREAPER, 1)
    answers = request["answers"]
    for module in {answer["module"] for answer in answers}:
        importlib.import_module(module)  # once, before the fork
    # As in a kernel: modules beside the notebook can be imported.
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    for answer in answers:
        state, message = judge(answer, request["seconds"])
        print(json.dumps({"state": state, "message": message}), flush=True)


def judge(answer: dict, seconds: float) -> tuple[str, str]:
    """Return (state, message) of one answer; its check may take ``seconds``."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _answer(answer, seconds, writing)
    os.close(writing)
    try:
        return _listen(reading, process, seconds)
    finally:
        _end_children()
        os.close(reading)


def _end_children() -> None:
    """Kill every process that an answer has left, until there is none.

    Processes in their own session, and orphans, are children of this process by then, or become
    its children when their parent is killed.
    """
    until = time.monotonic() + _ENDING
    while time.monotonic() < until:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
        except ChildProcessError:
            return


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _listen(reading: int, process: int, seconds: float) -> tuple[str, str]:
    """Return the verdict of the process, or an error that explains why there is none."""
    heard, ready = b"", False
    until = time.monotonic() + _PREPARATION
    while True:
        wait = until - time.monotonic()
        if wait <= 0 or not select.select([reading], [], [], wait)[0]:
            what = "the check" if ready else "what the answer needs"
            limit = seconds if ready else _PREPARATION
            return "error", f"{what} took longer than {limit:g} s: does a loop never end?"
        part = os.read(reading, 65536)
        heard += part
        *lines, _ = heard.split(b"\n")
        if len(lines) > 1:
            return _verdict(lines[1])
        if lines and not ready:
            ready, until = True, time.monotonic() + seconds
        if not part:
            break
    return _ended(process)


def _verdict(line: bytes) -> tuple[str, str]:
    """Return the (state, message) in ``line``, or an error if it is not a verdict."""
    try:
        state, message = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        state = None
    if state not in STATES or not isinstance(message, str):
        return "error", "its process wrote something other than a verdict"
    return state, message


def _ended(process: int) -> tuple[str, str]:
    """Return how a process that has closed its pipe ended; kill it if it still runs."""
    time.sleep(0.1)  # from closing to ending
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)  # does nothing to a process that has ended
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return "error", f"its process was ended by {signal_name(os.WTERMSIG(status))}"
    return "error", f"its process ended with exit code {os.WEXITSTATUS(status)} before the verdict"


def _answer(answer: dict, seconds: float, writing: int) -> None:
    """Run as the process of one answer: execute and check it, write the verdict, and exit."""
    try:
        _fence(seconds)
        out = _Tail()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(_Tail()):
            attempt = _attempt(answer)
            os.write(writing, b"ready\n")
            verdict = attempt if isinstance(attempt, tuple) else _checked(answer, attempt, out)
        os.write(writing, json.dumps(verdict).encode() + b"\n")
    finally:
        # This skips every exit handler that an answer may have left.
        os._exit(0)


def _attempt(answer: dict) -> object:
    """Return the learner's function, or a verdict if it cannot be obtained."""
    space = {"__name__": "__main__"}
    try:
        code = answer["code"]
        linecache.cache["answer"] = (len(code), None, code.splitlines(keepends=True), "answer")
        exec(compile(code, "answer", "exec"), space)
        return eval(answer["attempt"], space)
    except BaseException as error:
        return "error", _raised(error)


def _checked(answer: dict, attempt: object, out: "_Tail") -> tuple[str, str]:
    try:
        passed = importlib.import_module(answer["module"]).check(answer["name"], attempt)
    except BaseException as error:  # for example KeyboardInterrupt, which the check does not catch
        return "error", _raised(error)
    # The answer's own output may come before and after this line.
    head = f"{answer['name']}: "
    lines = [line for line in out.getvalue().splitlines() if line.startswith(head)]
    line = lines[-1].removeprefix(head) if lines else ""
    if passed:
        return "passed", line.removeprefix("passed ").strip("()")
    if line == "not attempted yet":
        return "not attempted", ""
    return "wrong", line.partition("; ")[2] or line


def _raised(error: BaseException) -> str:
    last = traceback.format_exception_only(error)[-1].strip()
    return f"it raised {last.splitlines()[0]}"


def _fence(seconds: float) -> None:
    """Limit the resources of this process, and disconnect its input and output."""
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)  # if the judge is killed
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.stdin = open(os.devnull, encoding="utf-8")
    processor = int(_PREPARATION + seconds) + 1
    # Even if the waiting process is killed, an endless loop ends.
    resource.setrlimit(resource.RLIMIT_CPU, (processor, processor))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit then raises OSError
    resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, _WRITTEN))
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA, _DATA))


class _Tail(io.StringIO):
    """Keeps only the end of the output: an answer may print without end."""

    def write(self, text: str) -> int:
        super().write(text)
        if self.tell() > 2 * _KEPT:
            end = self.getvalue()[-_KEPT:]
            self.seek(0)
            self.truncate()
            super().write(end)
        return len(text)


if __name__ == "__main__":
    main()
