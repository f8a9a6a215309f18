"""The syntax of source files. Tests that look at all of production code share one tree of each file.

Python parses production code in 2 s and walks through it in 2 s, and ten tests look at all of it.
"""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


def read_nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, in the order of `ast.walk`."""
    with _without_collections():
        return tuple(ast.walk(ast.parse(file.read_text(), str(file))))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """The nodes of a file of production code, kept for the next test. Nobody may change them."""
    return read_nodes(file)


def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file of production code. Nobody may change it."""
    tree = nodes_of(file)[0]
    assert isinstance(tree, ast.Module)
    return tree


@contextmanager
def _without_collections() -> Iterator[None]:
    """A tree has no circles. While it grows, collections of garbage would take four times as long as the parser."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
