"""Shapes that no file, class or function may take, and those that are there already and may only shrink.

They are lines and parameters of functions, and how often production code says `Any`. A function with too many
parameters stands in a table with their number. It may get smaller, and its line then has to say so; it may not get
larger, and nothing new may join. Files, classes and folders have no limits: one algorithm is one file.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.syntax import nodes_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "runtime", "storage", "client", "actors", "bulk", "data", "serve", "spark", "tasks", "cluster")

FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 8

PARAMETERS: dict[str, int] = {
    "actors/bookie/service.py:__init__": 12,
    "actors/broker/service.py:__init__": 9,
    "actors/dispatch/consumer.py:__init__": 9,
    "actors/topics/loaded_topics.py:__init__": 9,
    "actors/topics/producer.py:__init__": 10,
    "bulk/local_read.py:arrow_batches": 10,
    "bulk/local_read.py:to_arrow": 10,
    "bulk/local_read.py:to_pandas": 10,
    "client/consuming/message.py:__init__": 10,
    "client/producing/topic_producer.py:outgoing": 10,
    "data/datasource.py:read_topic": 15,
    "data/following.py:follow": 12,
    "tasks/consume.py:consume": 21,
    "runtime/rpc/connection.py:__init__": 10,
    "runtime/rpc/connection.py:rpc_connect": 9,
    "spark/reading/frame.py:read_topic": 14,
    "spark/reading/stream.py:stream": 16,
    "spark/frame_writing.py:write_topic": 9,
    "storage/bookie/journal.py:__init__": 12,
}
ANY_USES = 68

PUBLIC_FACES = (
    "client/aio/",
    "client/blocking/",
    "cluster/starting.py",
    "cluster/command_line.py",
    *(f"cluster/{room}/{command}.py" for room in ("terminal", "load") for command in ("produce", "consume")),
)
"""Their calls keep the official client's parameters, and the command line's options are its parameters."""


def files() -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """Each file of production code with its nodes."""
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if not file.name.endswith("_pb2.py"):
                yield str(file.relative_to(ROOT)), nodes_of(file)


def functions(nodes: tuple[ast.AST, ...]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in given)


def over(limit: int, sizes: Iterator[tuple[str, int]]) -> dict[str, int]:
    return {name: size for name, size in sizes if size > limit}


def parameters_of_functions() -> dict[str, int]:
    return over(
        PARAMETERS_MAX,
        (
            (f"{file}:{function.name}", parameters(function))
            for file, nodes in files()
            if not file.startswith(PUBLIC_FACES)
            for function in functions(nodes)
        ),
    )


def uses_of_any() -> int:
    return sum(isinstance(node, ast.Name) and node.id == "Any" for _, nodes in files() for node in nodes)


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which may explain every parameter."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (function.body[0].end_lineno or 0) - function.body[0].lineno + 1
    return lines


def test_functions_stay_short() -> None:
    sizes = ((f"{file}:{one.name}", lines_of(one)) for file, nodes in files() for one in functions(nodes))
    assert over(FUNCTION_LINES_MAX, sizes) == {}


def test_functions_have_few_parameters() -> None:
    found = parameters_of_functions()
    changed = sorted((Counter(found) - Counter(PARAMETERS)).items())
    assert found == PARAMETERS, f"over the limit, or smaller now: {changed}"


def test_production_code_says_any_no_more_often_than_before() -> None:
    assert uses_of_any() == ANY_USES, "lower ANY_USES when it has fallen; type what has been added"
