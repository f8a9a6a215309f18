"""One name, one thing: no class and no type has the name of another one of production code.

`Outcome`, `Lock` or `Session` tell a reader nothing when several rooms have one. The public faces are no exception:
the blocking face has the official client's names, and the asyncio face puts `Async` before them.
"""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "runtime", "storage", "client", "actors", "spark", "cluster")

SHARED: dict[str, str] = {"T": "the type variable of a generic function"}
"""Names that several files define, and why that is no mistake."""


def defined(tree: ast.Module) -> set[str]:
    """Its classes, and the names in CamelCase that it assigns: aliases of types and type variables."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {one.id for one in targets if isinstance(one, ast.Name) and one.id[0].isupper()}
    return {name for name in names if name == "T" or not name.isupper()}


def test_no_two_files_define_a_class_or_type_of_the_same_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if not file.name.endswith("_pb2.py"):
                for name in defined(ast.parse(file.read_text(), str(file))):
                    homes[name].append(str(file.relative_to(ROOT)))
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SHARED} == {}, "rename all but one"
    assert set(SHARED) <= set(twice), "take names out of SHARED that only one file defines"
