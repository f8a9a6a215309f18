"""Shapes that no file, class or function may take, and those that are there already and may only shrink.

Lengths of files are limited in `test_layering.py`. Here: functions, methods and attributes of a class, parameters, and
how often production code says `Any`. What is over a limit stands in a table with its size. It may get smaller, and its
line then has to say so; it may not get larger, and nothing new may join.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "runtime", "storage", "client", "actors", "spark", "cluster")

FUNCTION_LINES_MAX = 70
METHODS_MAX = 25
ATTRIBUTES_MAX = 20
PARAMETERS_MAX = 8

METHODS: dict[str, int] = {
    "actors/connections/connection.py:ServerConnection": 30,
    "client/consuming/ack_sender.py:ConsumerAcks": 29,
    "client/consuming/partition_consumer.py:PartitionConsumer": 27,
    "client/producing/partition_producer.py:PartitionProducer": 27,
    "runtime/rpc/connection.py:RpcConnection": 26,
    "storage/bookie/entry_store.py:EntryStore": 31,
    "storage/ledger/writer.py:LedgerWriter": 26,
    "storage/managed/chain_writer.py:ChainWriter": 28,
    "storage/managed/managed_ledger.py:ManagedLedger": 36,
}
ATTRIBUTES: dict[str, int] = {
    "actors/bookie/service.py:BookieService": 22,
    "actors/connections/connection.py:ServerConnection": 24,
    "actors/members/coordinator_link.py:CoordinatorClient": 24,
    "client/consuming/partition_consumer.py:PartitionConsumer": 23,
    "client/producing/outbox.py:Outbox": 24,
    "runtime/rpc/connection.py:RpcConnection": 24,
    "storage/bookie/entry_store.py:EntryStore": 26,
    "storage/bookie/journal.py:Journal": 28,
    "storage/managed/chain_writer.py:ChainWriter": 28,
}
PARAMETERS: dict[str, int] = {
    "actors/bookie/service.py:__init__": 12,
    "actors/broker/service.py:__init__": 9,
    "actors/dispatch/consumer.py:__init__": 9,
    "actors/topics/producer.py:__init__": 10,
    "client/consuming/message.py:__init__": 10,
    "runtime/rpc/connection.py:__init__": 10,
    "runtime/rpc/connection.py:rpc_connect": 9,
    "runtime/settings/text.py:setting": 9,
    "spark/reading/frame.py:read_topic": 10,
    "storage/bookie/journal.py:__init__": 12,
}
ANY_USES = 46

PUBLIC_FACES = (
    "client/aio/",
    "client/blocking/",
    "cluster/starting.py",
    "cluster/command_line.py",
    *(f"cluster/{room}/{command}.py" for room in ("terminal", "load") for command in ("produce", "consume")),
)
"""Their calls keep the official client's parameters, and the command line's options are its parameters."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if not file.name.endswith("_pb2.py"):
                yield str(file.relative_to(ROOT)), ast.parse(file.read_text(), str(file))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def classes(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, list[ast.FunctionDef | ast.AsyncFunctionDef]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node, [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def attributes(methods: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> set[str]:
    """What the methods of a class assign to `self`."""
    return {
        node.attr
        for method in methods
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in given)


def over(limit: int, sizes: Iterator[tuple[str, int]]) -> dict[str, int]:
    return {name: size for name, size in sizes if size > limit}


def methods_of_classes() -> dict[str, int]:
    return over(METHODS_MAX, ((f"{f}:{c.name}", len(m)) for f, tree in trees() for c, m in classes(tree)))


def attributes_of_classes() -> dict[str, int]:
    sizes = ((f"{f}:{c.name}", len(attributes(m))) for f, tree in trees() for c, m in classes(tree))
    return over(ATTRIBUTES_MAX, sizes)


def parameters_of_functions() -> dict[str, int]:
    return over(
        PARAMETERS_MAX,
        (
            (f"{file}:{function.name}", parameters(function))
            for file, tree in trees()
            if not file.startswith(PUBLIC_FACES)
            for function in functions(tree)
        ),
    )


def uses_of_any() -> int:
    return sum(isinstance(node, ast.Name) and node.id == "Any" for _, tree in trees() for node in ast.walk(tree))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which may explain every parameter."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (function.body[0].end_lineno or 0) - function.body[0].lineno + 1
    return lines


def test_functions_stay_short() -> None:
    sizes = ((f"{file}:{one.name}", lines_of(one)) for file, tree in trees() for one in functions(tree))
    assert over(FUNCTION_LINES_MAX, sizes) == {}


@pytest.mark.parametrize(
    ("found", "allowed"),
    [
        (methods_of_classes(), METHODS),
        (attributes_of_classes(), ATTRIBUTES),
        (parameters_of_functions(), PARAMETERS),
    ],
    ids=["methods", "attributes", "parameters"],
)
def test_what_is_too_large_only_shrinks(found: dict[str, int], allowed: dict[str, int]) -> None:
    assert found == allowed, f"over the limit, or smaller now: {sorted((Counter(found) - Counter(allowed)).items())}"


def test_production_code_says_any_no_more_often_than_before() -> None:
    assert uses_of_any() == ANY_USES, "lower ANY_USES when it has fallen; type what has been added"
