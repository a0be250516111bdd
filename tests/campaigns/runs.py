"""Readers of what runs write: results.json, run.json, sweeps, records.csv, notebooks, figures."""

# ruff: noqa: E501 (tables of odd values)

import io
import json
import random
from contextlib import redirect_stdout
from pathlib import Path

from tests.campaigns.mutate import ODD, Tree, damaged, json_file, text_damaged
from tests.campaigns.reader import Reader, with_special
from tests.support import run_folders as made

LAB = made.LAB
ROOT = Path(__file__).resolve().parents[2]
RECORDS = b"update,loss,accuracy,seconds\n" + b"".join(
    b"%d,%.4f,%.3f,%.1f\n" % (n, 1 / n, 1 - 1 / (n + 1), 0.5 * n) for n in range(1, 9)
)


def _make_results(rule: random.Random) -> Tree:
    error = {"name": "ValueError", "message": "x", "cell": 3, "cause": "exception", "log": ["a"]}
    failed, running = {"status": "failed", "error": error}, {"status": "running", "pid": 1}
    value = made.results(**rule.choice(({}, failed, running)))
    tree: Tree = {"lab/results.json": json_file(rule, value), "lab/records.csv": RECORDS}
    if rule.random() < 0.3:
        name = rule.choice(("log.txt", "kernel.log", "figures/a.png"))
        content = made.png() if name.endswith("png") else b"one\rtwo\nthree \xff\x1b]0;x\x07\n"
        tree[f"lab/{name}"] = damaged(rule, content)
    return with_special(rule, tree)


def _make_run(rule: random.Random) -> Tree:
    about = {"labs": [LAB], "preset": "smoke", "device": "CPU", "started": "2026-01-02T03:04:05"}
    about["parameters"] = {LAB: {"epochs": 1}}
    tree: Tree = {"run.json": json_file(rule, about)}
    if rule.random() < 0.5:
        tree[f"{LAB}/results.json"] = json.dumps(made.results()).encode()
    return with_special(rule, tree)


def _make_sweep(rule: random.Random) -> Tree:
    about = {"lab": LAB, "preset": "smoke", "device": "CPU", "grid": {"seed": [1, 2]}}
    table = b"seed,status,seconds,test accuracy\n1,passed,12.5,0.98\n2,failed,1.5,\n"
    tree: Tree = {"sweep.json": json.dumps(about).encode(), "sweep.csv": table}
    if rule.random() < 0.5:
        tree["sweep.json"] = json_file(rule, about)
    else:
        tree["sweep.csv"] = _odd_table(rule, table)
    return with_special(rule, tree)


_CELLS = (b"9" * 5000, b'"', b'"a\nb"', b"1_0", b" 1", b"\xd9\xa1", b"x" * 200_000, b"", b"\r")


def _odd_table(rule, table: bytes) -> bytes:
    if rule.random() < 0.005:  # few bytes, many cells
        columns, lines = (rule.choice((3, 300, 3000, 30_000)) for _ in range(2))
        names = b",".join(b"%d" % number for number in range(columns))
        row = rule.choice((b"1\n", b",".join([b"1"] * columns) + b"\n"))
        return names + b"\n" + row * min(lines, 30_000_000 // columns)
    if rule.random() < 0.4:
        return text_damaged(rule, table)
    rows = [line.split(b",") for line in table.splitlines()]
    for _ in range(rule.choice((1, 2, 3))):
        row = rule.choice(rows)
        odd = str(rule.choice(ODD)).encode("utf-8", "surrogatepass")
        row[rule.randrange(len(row))] = rule.choice((odd, *_CELLS))
        if rule.random() < 0.2:
            row += [b"1"] * rule.choice((1, 3))
    return b"\n".join(b",".join(row) for row in rows) + rule.choice((b"\n", b"", b"\n\n", b"\0"))


def _make_records(rule: random.Random) -> Tree:
    table = _odd_table(rule, RECORDS)
    return with_special(rule, {"lab/records.csv": table, "lab/log.txt": b"one\n"})


def _output(kind: str, **data) -> dict:
    return {"output_type": kind, "metadata": {}, "data": data}


def _notebook() -> dict:
    picture = _output("display_data", **{"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"})
    html = _output("execute_result", **{"text/html": "<b onclick='x'>x</b>", "text/latex": "$x$"})
    text = {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\x1b[31m red"]}
    error = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["a", "b"]}
    return made.notebook(
        made.markdown("# 01 · Sums\n\nThe mean is $\\frac1n$, [a link](x.md), ![p](a.png)."),
        made.code("epochs = 1", text) | {"metadata": {"tags": ["parameters"]}},
        made.code("print(1)", picture, html | {"execution_count": 1}, error),
    )


_WORDS = ("$", "$$", "\\frac{", "}", "\\sqrt", "`", "```\n", "<!-->", "-->", "<!--", "<script>", "<svg", "<math>",
          "</style>", "&#x0;", "&#xD800;", "[a](", "![", "](", "javascript:x", "* " * 50, "> " * 200, "|a|b|\n|-|-|\n",
          "<a href='http://[::1'>x</a>", "[l](http://[)", "<a href='../../outside/x'>", "[n](\0)", "[y](" + "x" * 400 + ")",
          "\\left(", "^" * 200, "_{" * 200, "<b>" * 400, "[" * 500, "\x00", "\u2028", "\ud800", "%" * 20)  # fmt: skip


def _make_notebook(rule: random.Random) -> Tree:
    value = _notebook()
    if rule.random() < 0.4:
        words = "".join(rule.choice(_WORDS) for _ in range(rule.choice((1, 3, 10, 40))))
        value["cells"][0]["source"] = f"# x\n\n{words}"
        content = json.dumps(value).encode()
    else:
        content = json_file(rule, value)
    tree = {"lab/01_x.ipynb": content, "lab/results.json": json.dumps(made.results()).encode()}
    return with_special(rule, tree)


def _make_manifest(rule: random.Random) -> Tree:
    classes = {"train/0": {"images": 1, "bytes": 1, "sha256": "0" * 64}}
    value = {"data set": "x", "official": False, "names": ["0"], "classes": classes}
    value["verified"] = {"a.tar": ["/x", 1, 2]}
    tree: Tree = {
        "manifest.json": json_file(rule, value),
        "train/0/a.png": b"x",
        "config.json": json_file(rule, {"lr": 0.1, "seed": 1}),
        "classes.json": json_file(rule, ["0", "1"]),
    }
    return with_special(rule, tree)


def _report(folder: Path, out: Path):
    from labkit.tools.reports import page

    return page.write([_run(folder)], out / "report.html")


def _run(folder: Path) -> Path:
    return folder / "lab" if (folder / "lab").is_dir() else folder


def _compare(folder: Path, out: Path):
    import typer

    from labkit.tools.commands.reports import compare

    good = out / "good"
    good.mkdir()
    (good / "results.json").write_text(json.dumps(made.results()))
    for json_wanted in (False, True):
        try:
            # As on a terminal, text that UTF-8 cannot encode raises an error.
            with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
                compare(_run(folder), good, json=json_wanted)
        except typer.Exit:
            pass


def _attach(folder: Path, _out: Path):
    from labkit.tools.reports import live

    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        return live.in_terminal(_run(folder), 0.1, once=True)


def _over(folder: Path, _out: Path):
    from labkit.tools.running.execution import Execution
    from labkit.tools.running.folders import completed, stopped

    completed(_run(folder), made.results(), Execution(None, 1.0), 1.0)
    return stopped(_run(folder), ValueError("stopped"))


def _resume(folder: Path, _out: Path):
    """Do what `labkit run --resume` does before it prepares data."""
    from labkit.tools.running import folders, request, runner

    before = folders.read_run(folder)
    wanted = request.check(
        before["labs"],
        preset=before["preset"],
        device=before["device"],
        before=before["parameters"],
        start=ROOT,
    )
    folders.write_run(folder, wanted)
    for lab in wanted.labs:
        runner.passed_before(lab, wanted, folder / lab.name, lambda event: None)


def _again(folder: Path, _out: Path):
    """Do what `labkit run --out` does with an older run.json."""
    from labkit.tools.running import folders, request

    folders.write_run(folder, request.check(["01"], preset="smoke", start=ROOT))


def _records(folder: Path, _out: Path):
    from labkit.tools.reports.read import read_lab
    from labkit.training.records import read_records

    read_lab(folder / "lab", "x").records()
    return read_records(folder / "lab" / "records.csv")


def _convert(folder: Path, _out: Path):
    from labkit.tools.reports.notebook_page import convert

    return convert(folder / "lab" / "01_x.ipynb")


def _work(folder: Path, out: Path):
    from labkit.tools import notebook_files

    notebook = notebook_files.read(folder / "lab" / "01_x.ipynb")
    for cell in notebook["cells"]:
        notebook_files.digest(cell)
    notebook_files.write(out / "copy.ipynb", notebook)


def _labs(folder: Path, _out: Path):
    from labkit.tools import labs

    (folder / "notebooks").mkdir()
    (folder / "lab" / "01_x.ipynb").rename(folder / "notebooks" / "01_x.ipynb")
    for lab in labs.find_labs(folder):
        labs.parameter_names(lab)
        labs.mentions(lab, "mnist")


def _manifest(folder: Path, _out: Path):
    from labkit.data.sources.classfolders import ClassFolders

    folders = ClassFolders(folder, "x", ["train"], False)
    folders.remembers(folder / "manifest.json")
    folders.count("train")
    return (
        folders.whole("train", "0"),
        folders.whole("train", "0", content=True),
        sorted(folders.names),
    )


def _recipe(folder: Path, _out: Path):
    from labkit.recipes.resnet50_config import Config
    from labkit.recipes.run_folder import check_resume

    check_resume(Config(lr=0.1), ["0", "1"], folder)


def _digits(folder: Path, _out: Path):
    from tests.support.data_archives import load

    wanted = {"data": "x", "size": 1}
    return load("color_digits")._is_there(folder, wanted)


READERS = {
    "results": Reader(_make_results, (_report, _compare, _attach, _over)),
    "run": Reader(_make_run, (_report, _compare, _attach, _resume, _again)),
    "sweep": Reader(_make_sweep, (_report, _compare, _attach)),
    "records": Reader(_make_records, (_report, _attach, _records)),
    "notebook": Reader(_make_notebook, (_convert, _report, _work, _labs)),
    "manifest": Reader(_make_manifest, (_manifest, _recipe, _digits)),
}
