"""Writes the signatures and docstrings of both faces of the client, from where they are declared. See `make reference`.

Each public call has one declaration, by hand:

- `send` and `send_async`: `TopicProducer.outgoing`. Its parameters also become the arguments that a call hands on to
  it, and the question whether a message is a plain payload (`if self._plain and …`).
- `Client(…)`, `create_producer`, `subscribe` and `create_reader`: the options in `client/core/configuration.py`, up to
  `KW_ONLY`. The other options have no parameter: calls take them among `**options`.
- All others: the asyncio face. The blocking face gets parameters and docstring from it (`FACES`).

A call keeps parameters of its own (`Call.own`), what its docstring says before `Args:`, its result's type and its body.

    python -P tests/tools/generate_faces.py [--check]
"""

import argparse
import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
DECLARED = ("client/producing/topic_producer.py", "TopicProducer", "outgoing")
OPTIONS = "client/core/configuration.py"
BESIDES = {"unsupported": "Not supported. Leave it out.", "without_effect": "Accepted without effect."}
"""What docstrings say of parameters that are no options, by the function that declares them."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Call(NamedTuple):
    """A call of a face, with what it has otherwise than its declaration."""

    file: str
    of: str
    name: str
    own: tuple[str, ...] = ()
    """Parameters that are written by hand in this face: of other types or defaults than declared, or not declared."""
    last: tuple[str, ...] = ()
    """Parameters that come last, in this order, because the official client has them there."""


CALLS = (
    Call("client/aio/producer.py", "AsyncProducer", "send"),
    Call("client/aio/producer.py", "AsyncProducer", "send_async", own=("callback",)),
    Call("client/blocking/producer.py", "Producer", "send"),
    Call("client/blocking/producer.py", "Producer", "send_async", own=("callback",)),
)
"""They send, as `DECLARED` says."""
CREATORS = {
    Call("client/aio/client.py", "AsyncClient", "__init__"): "ClientConfiguration",
    Call("client/blocking/client.py", "Client", "__init__"): "ClientConfiguration",
    Call("client/aio/client.py", "AsyncClient", "create_producer", own=("batching_enabled",)): "ProducerConfiguration",
    Call("client/blocking/client.py", "Client", "create_producer"): "ProducerConfiguration",
    Call(
        "client/aio/client.py",
        "AsyncClient",
        "subscribe",
        own=("message_listener",),
        last=("message_listener", "pattern_auto_discovery_period"),
    ): "ConsumerConfiguration",
    Call("client/blocking/client.py", "Client", "subscribe", own=("message_listener",)): "ConsumerConfiguration",
    Call(
        "client/aio/client.py", "AsyncClient", "create_reader", own=("reader_listener",), last=("reader_listener",)
    ): "ReaderConfiguration",
    Call("client/blocking/client.py", "Client", "create_reader", own=("reader_listener",)): "ReaderConfiguration",
}
"""They take options, of the class that each names."""
FACES = {
    ("client/blocking/client.py", "Client"): ("client/aio/client.py", "AsyncClient"),
    ("client/blocking/producer.py", "Producer"): ("client/aio/producer.py", "AsyncProducer"),
    ("client/blocking/consumer.py", "Consumer"): ("client/aio/consumer.py", "AsyncConsumer"),
    ("client/blocking/reader.py", "Reader"): ("client/aio/reader.py", "AsyncReader"),
    ("client/blocking/table_view.py", "TableView"): ("client/aio/table_view.py", "AsyncTableView"),
}
"""Classes of the blocking face, and those of the asyncio face that their calls are declared in."""
DIFFERENT = {("Consumer", "close"), ("Reader", "close"), ("TableView", "for_each_and_listen")}
"""Calls that do something else in each face, so that each has its docstring by hand."""


class Parameter(NamedTuple):
    """One parameter, as it stands in a signature and in a docstring."""

    name: str
    text: str
    doc: str


def class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    """A class of a module. Raises StopIteration when there is none."""
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def method(tree: ast.Module, of: str, name: str) -> Function:
    """A method of a class. Raises StopIteration when there is none."""
    return next(node for node in methods(tree, of) if node.name == name)


def methods(tree: ast.Module, of: str) -> Iterator[Function]:
    """The methods that a class itself defines."""
    return (node for node in class_of(tree, of).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def parameters(source: str, function: Function) -> list[Parameter]:
    """The parameters of a function, in their order."""
    arguments = function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    docs = entries(ast.get_docstring(function) or "")
    found: list[Parameter] = []
    for argument, default in zip(arguments, defaults, strict=True):
        text = segment(source, argument)
        if default is not None:
            text += f" = {segment(source, default)}"
        found.append(Parameter(argument.arg, text, docs.get(argument.arg, "")))
    return found


def options(source: str, kind: str) -> list[Parameter]:
    """The parameters that a class of options declares, and the other parameters of the call that takes them."""
    found = [Parameter("self", "self", "")]
    for node in class_of(parsed(source), kind).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if ast.unparse(node.annotation) == "KW_ONLY":
            break
        if isinstance(node.value, ast.Call):
            found.append(_option(source, node.target.id, node.annotation, node.value))
    return found


def _option(source: str, name: str, annotation: ast.expr, declared: ast.Call) -> Parameter:
    keywords = {each.arg: each.value for each in declared.keywords}
    default = segment(source, declared.args[0]) if declared.args else ""
    by = ast.unparse(declared.func)
    if by in BESIDES:
        inner = annotation.slice if isinstance(annotation, ast.Subscript) else annotation  # that of `ClassVar[…]`
        return Parameter(name, f"{name}: {segment(source, inner)} = {default}", BESIDES[by])
    kind = segment(source, annotation)
    if "texts" in keywords:
        kind, default = f"{kind} | None", "None"
    if "given" in keywords:
        kind = ast.literal_eval(keywords["given"])
    doc: str = ast.literal_eval(declared.args[1] if len(declared.args) > 1 else keywords["doc"])
    return Parameter(name, f"{name}: {kind} = {default}" if default else f"{name}: {kind}", doc)


def entries(docstring: str) -> dict[str, str]:
    """The section `Args:`, by parameter."""
    found: dict[str, str] = {}
    name = ""
    section = docstring.partition("\nArgs:\n")[2].partition("\n\n")[0]
    for line in section.splitlines():
        if line.startswith("     "):
            found[name] += f" {line.strip()}"
        else:
            name, _, text = line.strip().partition(": ")
            found[name] = text
    return found


def written(source: str, call: Call, declared: Sequence[Parameter]) -> str:
    """The source of a face with one of its calls written again."""
    function = method(parsed(source), call.of, call.name)
    before = {parameter.name: parameter for parameter in parameters(source, function)}
    names = [parameter.name for parameter in declared if parameter.name != "self"]
    by_name = {parameter.name: parameter for parameter in declared} | {name: before[name] for name in call.own}
    order = ["self", names[0], *[name for name in call.own if name not in names], *names[1:]]
    order = [name for name in order if name not in call.last] + [*call.last]
    shown = [by_name[name] for name in order if name != "self"]
    if function.args.kwarg is not None:
        kept = function.args.kwarg.arg
        shown.append(Parameter(kept, "", entries(ast.get_docstring(function) or "")[kept]))
    changes = [_signature(function, [by_name[name].text for name in order])]
    for node in _replaced(function):
        if isinstance(node, ast.Call):
            text = f"{segment(source, node.func)}({', '.join(names)})"
        elif isinstance(node, ast.BoolOp):
            absent = [f"{one} is None" for one in names[1:]]
            text = " and ".join(["self._plain", f"{names[0]}.__class__ is bytes", *absent])
        else:
            text = _docstring(segment(source, node), shown)
        changes.append(Change(_start(node), _end(node), text))
    return changed(source, changes)


def mirrored(source: str, of: str, model: str, model_of: str) -> str:
    """The source of a blocking face with its calls as those of the asyncio face `model`."""
    there = {function.name: function for function in methods(parsed(model), model_of)}
    changes: list[Change] = []
    for function in methods(parsed(source), of):
        known = there.get(function.name)
        by_hand = function.name.startswith("_") and (of, function.name) not in _CREATED
        if known is None or by_hand or (of, function.name) in DIFFERENT | _SENT:
            continue
        docstring, other = _docstring_of(function), _docstring_of(known)
        if docstring is None or other is None:
            continue
        text = segment(model, other)
        if (of, function.name) in _CREATED:
            head, section, _ = _sections(segment(source, docstring))
            text = head + section + _sections(text)[2]
        else:
            changes.append(_signature(function, [one.text for one in parameters(model, known)]))
        changes.append(Change(_start(docstring), _end(docstring), text))
    return changed(source, changes)


_CREATED = {(call.of, call.name) for call in CREATORS}
_SENT = {(call.of, call.name) for call in CALLS}


@lru_cache(32)
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source."""
    return ast.parse(source)


@lru_cache(32)
def _lines(source: str) -> list[bytes]:
    """Columns of syntax trees count bytes."""
    return source.encode().splitlines(keepends=True)


def segment(source: str, node: ast.expr | ast.arg) -> str:
    """The text of a node. `ast.get_source_segment` would split the whole source for each node."""
    (first, column), (last, end_column) = _start(node), _end(node)
    lines = _lines(source)[first - 1 : last]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode()


class Change(NamedTuple):
    """A text in the place of what lies between two places (line from 1, column)."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def changed(source: str, changes: Sequence[Change]) -> str:
    """The source with all changes. They do not overlap."""
    lines = [*_lines(source)]
    for (first, column), (last, end_column), text in sorted(changes, reverse=True):
        lines[first - 1 : last] = [lines[first - 1][:column] + text.encode() + lines[last - 1][end_column:]]
    return b"".join(lines).decode()


def _signature(function: Function, texts: Sequence[str]) -> Change:
    arguments = function.args
    return Change(
        _start(arguments.args[0]),
        max(_end(one) for one in [*arguments.args, *arguments.defaults]),
        ", ".join(texts),
    )


def _start(node: ast.expr | ast.arg) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.arg) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _docstring_of(function: Function) -> ast.Constant | None:
    first = function.body[0]
    found = first.value if isinstance(first, ast.Expr) else None
    return found if isinstance(found, ast.Constant) else None


def _replaced(function: Function) -> list[ast.expr]:
    """What is written again in the body of a call."""
    docstring = _docstring_of(function)
    found: list[ast.expr] = [] if docstring is None else [docstring]
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == DECLARED[2]:
            found.append(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.BoolOp) and "_plain" in ast.dump(node.test.values[0]):
            found.append(node.test)
    return found


def _docstring(text: str, shown: Sequence[Parameter]) -> str:
    """A docstring with these parameters in its section `Args:`."""
    head, _, tail = _sections(text)
    return head + "".join(f"{_wrapped(f'{one.name}: {one.doc}')}\n" for one in shown) + tail


def _sections(text: str) -> tuple[str, str, str]:
    """A docstring, cut at the beginning and at the end of what its section `Args:` has."""
    begin = text.index(_ARGS) + len(_ARGS)
    end = text.index("\n\n", begin) + 1
    return text[:begin], text[begin:end], text[end:]


_ARGS = "        Args:\n"


def _wrapped(text: str) -> str:
    # A line does not break within `0 = never`.
    kept = text.replace(" = ", "\0=\0")
    lines = textwrap.wrap(kept, 108, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), " " * 12).replace("\0", " ")


def faces() -> dict[str, str]:
    """The source of each face, by its file, as it has to be."""
    found: dict[str, str] = {}

    def source(file: str) -> str:
        return found.get(file) or (ROOT / file).read_text()

    file, of, name = DECLARED
    sent = parameters(source(file), method(parsed(source(file)), of, name))
    for call in CALLS:
        found[call.file] = written(source(call.file), call, sent)
    for call, kind in CREATORS.items():
        found[call.file] = written(source(call.file), call, options(source(OPTIONS), kind))
    for (file, of), (model, model_of) in FACES.items():
        found[file] = mirrored(source(file), of, source(model), model_of)
    return {file: _formatted(file, text) for file, text in found.items()}


def _formatted(file: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", file, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, and fail when a face has other lines")
    arguments = parser.parse_args()
    others = {file: text for file, text in faces().items() if (ROOT / file).read_text() != text}
    for file, text in others.items():
        print(file)
        if not arguments.check:
            (ROOT / file).write_text(text)
    return 1 if arguments.check and others else 0


if __name__ == "__main__":
    sys.exit(main())
