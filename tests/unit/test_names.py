"""One name, one thing: no class and no type has the name of another one of production code.

`Outcome`, `Lock` or `Session` tell a reader nothing when several rooms have one. The public faces are no exception:
the blocking face has the official client's names, and the asyncio face puts `Async` before them.
"""

import ast
from collections import defaultdict
from pathlib import Path

from tools.syntax import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "runtime", "storage", "client", "actors", "bulk", "data", "serve", "spark", "tasks", "cluster")


def defined(file: Path) -> set[str]:
    """Its classes, and the types in CamelCase that it assigns. A type variable means nothing outside its file."""
    names = {node.name for node in nodes_of(file) if isinstance(node, ast.ClassDef)}
    for node in tree_of(file).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign):
            target, value = node.target, node.value
        else:
            continue
        variable = isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"
        if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper() and not variable:
            names.add(target.id)
    return names


def test_no_two_files_define_a_class_or_type_of_the_same_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if not file.name.endswith("_pb2.py"):
                for name in defined(file):
                    homes[name].append(str(file.relative_to(ROOT)))
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert twice == {}, "rename all but one"
