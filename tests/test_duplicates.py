"""Nothing of ten lines or more stands twice in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent / "tilesmith"
LINES = 10


def code_lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines of code, stripped: without imports, docstrings, comments, blank lines, lines
    of nothing but brackets, and the signatures of overloads, which must repeat each other.
    """
    skipped: set[int] = set()
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if not isinstance(node, ast.expr):  # none of these stands within an expression
            todo += ast.iter_child_nodes(node)
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        docstring = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        overload = isinstance(node, ast.FunctionDef) and any(
            isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list
        )
        if imports or docstring or overload:
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((k, line.strip()) for k, line in enumerate(text.splitlines(), 1))
    return [
        (k, line)
        for k, line in lines
        if k not in skipped and line.strip("()[]{},: ") and not line.startswith("#")
    ]


def repeated(texts: dict[str, str]) -> list[str]:
    """The places of every run of LINES lines that stands in more than one place."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text in texts.items():
        lines = code_lines(text)
        for k in range(len(lines) - LINES + 1):
            run = tuple(line for _, line in lines[k : k + LINES])
            places[run].append(f"{name}:{lines[k][0]}")
    return [" = ".join(found) for found in places.values() if len(found) > 1]


def test_nothing_of_ten_lines_stands_twice() -> None:
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in sorted(ROOT.rglob("*.py"))}
    assert repeated(texts) == []


def test_a_copy_is_found() -> None:
    body = "\n".join(f"x{k} = {k}" for k in range(LINES))
    spaced = body.replace("x5", "\n# five\n    x5".replace("    ", ""))
    assert repeated({"a": body, "b": f'"""Text."""\nimport os\n{spaced}'}) == ["a:1 = b:3"]
    assert repeated({"a": body, "b": body.replace("x5", "y5")}) == []
