"""The exercises of a lab, and the answers to them in a learner's notebook.

An exercise is identified by the name of its function, never by the id or the place of its cell.
"""

import ast
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_SOURCE_OF_CHECK = "labkit.labs.exercises."
_MAGIC = re.compile(r"^\s*(?:%|!|\?)|\?\s*$")


@dataclass
class Answer:
    """A notebook's answer to an exercise.

    Attributes:
        name: name of the exercise
        module: module of its check
        code: statements that bind the names that ``attempt`` needs
        attempt: the expression that is checked, usually the function's name
        problem: why there is nothing to check; otherwise empty
        notes: further messages for its author
    """

    name: str
    module: str
    code: str = ""
    attempt: str = ""
    problem: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cell:
    """A code cell: its statements with the names that each binds, its text, any syntax error."""

    statements: tuple[tuple[ast.stmt, frozenset[str]], ...]
    text: str
    error: str

    def nodes(self) -> Iterator[ast.AST]:
        """Yield every node of the syntax trees."""
        return (node for statement, _ in self.statements for node in ast.walk(statement))

    def binds(self, name: str) -> bool:
        """Return whether a statement binds ``name``."""
        return any(name in bound for _, bound in self.statements)


def code_cells(notebook: Mapping[str, Any]) -> list[Cell]:
    """Parse the code cells of ``notebook``; a cell that is not Python has an ``error``."""
    return [_parse(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def exercises(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the exercises that a lab's own ``cells`` leave unsolved: name -> module of its check.

    (A check of an answer that is already given shows how checks work; it is not an exercise.)
    """
    asked: dict[str, str] = {}
    module = None
    for cell in cells:
        nodes = list(cell.nodes())
        imports = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        module = next((name for name in imports if name.startswith(_SOURCE_OF_CHECK)), module)
        if module and any(isinstance(node, ast.Raise) for node in nodes):
            asked |= {name: module for name, _ in _checks(nodes)}
    return asked


def find(cells: list[Cell], name: str, module: str) -> Answer:
    """Find the answer to an exercise in ``cells``; nothing is executed."""
    checks = [
        (number, attempt)
        for number, cell in enumerate(cells)
        for checked, attempt in _checks(cell.nodes())
        if checked == name
    ]
    answer = Answer(name, module, attempt=name)
    try:
        answer.attempt = ast.unparse(checks[-1][1]) if checks else name
    except RecursionError:
        answer.problem = "what its check is given is nested too deep to be read"
        return answer
    definitions = [number for number, cell in enumerate(cells) if cell.binds(name)]
    if not checks and not definitions:
        answer.problem = _broken(cells, name) or (
            f"no cell defines {name} or checks it: was it renamed or deleted?"
        )
        return answer
    at = checks[-1][0] if checks else definitions[-1]
    if len(definitions) > 1:
        answer.notes.append(
            f"{name} is defined in {len(definitions)} cells; the last one above its check counts"
        )
    if not checks:
        answer.notes.append("its check is gone; checked all the same")
    _collect(cells, at, answer)
    if not answer.problem and (problem := _broken(cells, name)):
        answer.notes.append(f"another cell of it does not count: {problem}")
    return answer


def _collect(cells: list[Cell], at: int, answer: Answer) -> None:
    """Add to ``answer`` the statements that its attempt needs, transitively, in their order."""
    chosen: dict[tuple[int, int], ast.stmt] = {}
    try:
        compile(answer.attempt, "attempt", "eval")
    except SyntaxError:  # for example `check(name, *both)`
        answer.problem = f"it is checked as {answer.attempt}, which is not a function"
        return
    waiting, visited = [*_used(answer.attempt)], set()
    while waiting:
        name = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        where = _home(cells, name, at)
        if where is None:
            if name == answer.attempt:
                answer.problem = _broken(cells, name) or (
                    f"it is checked as {name}, and no cell defines {name}"
                )
            continue
        for place, (statement, bound) in enumerate(cells[where].statements):
            if name not in bound:
                continue
            if where != at and not _harmless(statement):
                answer.notes.append(
                    f"it uses {name}, which another cell computes; that cell was not run"
                )
                break
            chosen[where, place] = statement
            waiting += _used(ast.unparse(statement))
    answer.code = "\n".join(ast.unparse(chosen[place]) for place in sorted(chosen))


def _home(cells: list[Cell], name: str, at: int) -> int | None:
    """Return the cell whose binding of ``name`` holds at cell ``at``, in a run from the top.

    A name that is bound only further down counts as well: its author has run that cell by hand.
    """
    bound = [number for number, cell in enumerate(cells) if cell.binds(name)]
    above = [number for number in bound if number <= at]
    return above[-1] if above else bound[0] if bound else None


def _harmless(statement: ast.stmt) -> bool:
    """Return whether ``statement`` binds names without any real computation."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
        return True
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    return isinstance(statement.value, ast.Lambda) or not any(
        isinstance(node, ast.Call | ast.comprehension | ast.Await)
        for node in ast.walk(statement.value)
    )


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that ``statement`` binds in the notebook, not those inside functions.

    The result of a check does not count: any answer that reads a ``passed`` would run the check.
    """
    if not isinstance(statement, ast.FunctionDef | ast.ClassDef) and any(
        _checks(ast.walk(statement))
    ):
        return
    try:
        table = symtable.symtable(ast.unparse(statement), "cell", "exec")
    except SyntaxError:  # for example a `return` outside a function: the cell cannot run
        return
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
            yield symbol.get_name()


def _used(source: str) -> Iterator[str]:
    """Yield the names that ``source`` reads from the surrounding notebook."""

    def names(table: symtable.SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return names(symtable.symtable(source, "cell", "exec"))


def _checks(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, attempt) of each call ``check("name", attempt)``, also of ``module.check``."""
    for node in nodes:
        if isinstance(node, ast.Call) and len(node.args) == 2:
            called = getattr(node.func, "id", getattr(node.func, "attr", None))
            first, attempt = node.args
            if called == "check" and isinstance(first, ast.Constant) and type(first.value) is str:
                yield first.value, attempt


def _parse(source: str) -> Cell:
    """Return ``source`` as a cell; if Python refuses it, IPython's own lines are blanked."""
    error = ""
    # Blanked to keep line numbers, and tried second: a line of Python may begin with `%`.
    without = "\n".join("" if _MAGIC.search(line) else line for line in source.splitlines())
    for text in (source, without):
        try:
            statements = ast.parse(text).body
            return Cell(tuple((each, frozenset(_bound(each))) for each in statements), text, "")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as raised:
            line = getattr(raised, "lineno", None)
            error = getattr(raised, "msg", None) or str(raised)
            error += f" (line {line})" if line else ""
    return Cell((), source, error)


def _broken(cells: list[Cell], name: str) -> str:
    """Return the syntax error of the last cell that seems to be about ``name``, or ""."""
    about = re.compile(rf"\bdef\s+{re.escape(name)}\b|check\(\s*[\"']{re.escape(name)}[\"']")
    errors = [cell.error for cell in cells if cell.error and about.search(cell.text)]
    return f"its cell is not Python: {errors[-1]}" if errors else ""
