"""Writes what an application may say of a message into the calls of both faces that send one. See `make reference`.

`TopicProducer.outgoing` declares the parameters of `send`: names, types, defaults and their lines of documentation.
This program writes them to each call of `CALLS`: its signature, the section `Args:` of its docstring, the arguments
that it hands on to `outgoing`, and the question whether a message is a plain payload (`if self._plain and …`).
Everything else of a call is written by hand, and stays.

    python -P tests/tools/generate_faces.py [--check]
"""

import argparse
import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DECLARED = ("client/producing/topic_producer.py", "TopicProducer", "outgoing")
CALLS = (
    ("client/aio/producer.py", "AsyncProducer", "send"),
    ("client/aio/producer.py", "AsyncProducer", "send_async"),
    ("client/blocking/producer.py", "Producer", "send"),
    ("client/blocking/producer.py", "Producer", "send_async"),
)
OWN = ("self", "callback")
"""Parameters of the calls that are not of the message. They keep their places."""


class Parameter(NamedTuple):
    """One parameter, as it stands in a signature and in a docstring."""

    name: str
    text: str
    doc: str


def method(tree: ast.Module, of: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """A method of a class. Raises StopIteration when there is none."""
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == of)
    return next(
        node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )


def parameters(source: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Parameter]:
    """The parameters of a function, in their order."""
    arguments = function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    docs = entries(ast.get_docstring(function) or "")
    found: list[Parameter] = []
    for argument, default in zip(arguments, defaults, strict=True):
        text = ast.get_source_segment(source, argument) or argument.arg
        if default is not None:
            text += f" = {ast.get_source_segment(source, default)}"
        found.append(Parameter(argument.arg, text, docs.get(argument.arg, "")))
    return found


def entries(docstring: str) -> dict[str, str]:
    """The lines of the section `Args:`, by parameter."""
    found: dict[str, str] = {}
    section = docstring.partition("\nArgs:\n")[2].partition("\n\n")[0]
    for line in section.splitlines():
        name, _, text = line.strip().partition(": ")
        found[name] = text
    return found


def written(source: str, of: str, name: str, declared: list[Parameter]) -> str:
    """The source of a face with one of its calls written again."""
    function = method(ast.parse(source), of, name)
    before = parameters(source, function)
    names = [parameter.name for parameter in declared if parameter.name not in OWN]
    by_name = {parameter.name: parameter for parameter in [*declared, *before] if parameter.name not in names}
    by_name |= {parameter.name: parameter for parameter in declared}
    own = [parameter.name for parameter in before if parameter.name in OWN]
    order = [own[0], names[0], *own[1:], *names[1:]]
    lines = source.splitlines(keepends=True)
    for node in sorted(_replaced(function), key=lambda one: -one.lineno):
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        if isinstance(node, ast.Call):
            text = f"{ast.get_source_segment(source, node.func)}({', '.join(names)})"
        elif isinstance(node, ast.BoolOp):
            absent = [f"{one} is None" for one in names[1:]]
            text = " and ".join(["self._plain", f"{names[0]}.__class__ is bytes", *absent])
        elif isinstance(node, ast.Constant):
            text = _docstring(source, node, [by_name[one] for one in order if one != "self"])
        else:
            continue
        _splice(lines, start, end, text)
    first, last = function.args.args[0], [*function.args.args, *function.args.defaults]
    end = max((one.end_lineno or 0, one.end_col_offset or 0) for one in last)
    _splice(lines, (first.lineno, first.col_offset), end, ", ".join(by_name[one].text for one in order))
    return "".join(lines)


def _replaced(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """What is written again in the body of a call."""
    docstring = function.body[0]
    found: list[ast.expr] = [docstring.value] if isinstance(docstring, ast.Expr) else []
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == DECLARED[2]:
            found.append(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.BoolOp) and "_plain" in ast.dump(node.test.values[0]):
            found.append(node.test)
    return found


def _docstring(source: str, node: ast.Constant, shown: list[Parameter]) -> str:
    text = ast.get_source_segment(source, node) or ""
    head, _, rest = text.partition("        Args:\n")
    tail = rest.partition("\n\n")[2]
    return f"{head}        Args:\n" + "\n".join(f"            {one.name}: {one.doc}" for one in shown) + f"\n\n{tail}"


def _splice(lines: list[str], start: tuple[int, int], end: tuple[int, int], text: str) -> None:
    """Put a text in the place of what lies between two places (line from 1, column)."""
    (first, column), (last, end_column) = start, end
    lines[first - 1 : last] = [lines[first - 1][:column] + text + lines[last - 1][end_column:]]


def faces() -> dict[str, str]:
    """The source of each face, by its file, as it has to be."""
    file, of, name = DECLARED
    source = (ROOT / file).read_text()
    declared = parameters(source, method(ast.parse(source), of, name))
    found: dict[str, str] = {}
    for file, of, name in CALLS:
        found[file] = written(found.get(file) or (ROOT / file).read_text(), of, name, declared)
    return {file: _formatted(file, text) for file, text in found.items()}


def _formatted(file: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", file, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, and fail when a face has other lines")
    options = parser.parse_args()
    others = [file for file, text in faces().items() if (ROOT / file).read_text() != text]
    for file in others:
        print(file)
        if not options.check:
            (ROOT / file).write_text(faces()[file])
    return 1 if options.check and others else 0


if __name__ == "__main__":
    sys.exit(main())
