"""The shape of the source tree: which room may import which, no circles, light imports."""

import ast
import importlib.util
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import magnetar
from magnetar.protocol import names
from tools.syntax import nodes_of, read_nodes, tree_of

ROOT = Path(__file__).resolve().parents[2]

BASE = {"protocol", "runtime", "runtime.rpc", "runtime.settings"}
CLIENT = {
    "client",
    "client.core",
    "client.crypto",
    "client.schemas",
    "client.statistics",
    "client.producing",
    "client.acknowledging",
    "client.consuming",
    "client.letters",
    "client.aio",
    "client.blocking",
}
MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "runtime": {"protocol"},
    "runtime.settings": {"protocol", "runtime"},
    "runtime.rpc": {"protocol", "runtime", "runtime.settings"},
    "storage": set(),
    "storage.metadata": BASE,
    "storage.backup": BASE | {"storage.metadata"},
    "storage.bookie": BASE | {"storage.metadata"},
    "storage.ledger": BASE | {"storage.metadata"},
    "storage.managed": BASE | {"storage.ledger", "storage.metadata"},
    "client": set(),
    "client.crypto": BASE,
    "client.schemas": BASE,
    "client.core": BASE | {"client.crypto", "client.schemas"},
    "client.statistics": BASE,
    "client.producing": BASE | {"client.core", "client.crypto", "client.schemas", "client.statistics"},
    "client.acknowledging": BASE | {"client.core"},
    "client.consuming": BASE
    | {"client.acknowledging", "client.core", "client.crypto", "client.schemas", "client.statistics"},
    "client.letters": BASE
    | {"client.core", "client.schemas", "client.producing", "client.consuming", "client.statistics"},
    "client.aio": BASE
    | {"client.core", "client.crypto", "client.producing", "client.consuming", "client.letters", "client.statistics"}
    | {"client.schemas"},
    "client.blocking": BASE
    | {"client.core", "client.crypto", "client.producing", "client.consuming", "client.letters", "client.aio"}
    | {"client.schemas"},
    "actors": set(),
    "actors.members": BASE | {"storage.ledger", "storage.metadata"},
    "actors.dispatch": BASE,
    "actors.policies": BASE,
    "actors.compaction": BASE | {"actors.dispatch", "actors.policies", "actors.topics", "storage.managed"},
    "actors.deduplication": BASE | {"actors.policies", "actors.topics", "storage.managed"},
    "actors.same_address": BASE | {"actors.dispatch", "actors.topics"},
    "actors.features": BASE
    | {"actors.compaction", "actors.deduplication", "actors.delays", "actors.same_address", "actors.topics"},
    "actors.delays": BASE
    | {"actors.dispatch", "actors.policies", "actors.topics", "storage.ledger", "storage.managed"},
    "actors.rates": BASE | {"actors.dispatch", "actors.policies"},
    "actors.security": BASE | {"actors.policies"},
    "actors.schemas": BASE | {"actors.policies", "storage.metadata"},
    "actors.keeping": BASE | {"actors.policies", "storage.managed"},
    "actors.topics": BASE
    | {"actors.dispatch", "actors.keeping", "actors.policies", "actors.rates"}
    | {"storage.managed", "storage.metadata"},
    "actors.connections": BASE
    | {"actors.topics", "actors.dispatch", "actors.members", "actors.rates", "actors.schemas", "actors.security"},
    "actors.broker": BASE
    | {"actors.balancing", "actors.compaction", "actors.connections", "actors.features", "actors.members"}
    | {"actors.schemas", "actors.security", "actors.topics", "storage.managed", "storage.ledger", "storage.metadata"},
    "actors.bookie": BASE | {"actors.members", "storage.bookie", "storage.metadata"},
    "actors.desired": BASE | {"actors.members", "storage.metadata"},
    "actors.auditor": BASE
    | {"actors.desired", "actors.members", "storage.managed", "storage.ledger", "storage.metadata"},
    "actors.balancing": BASE,
    "actors.slots": BASE | {"storage.metadata"},
    "actors.coordinator": BASE
    | {"actors.auditor", "actors.balancing", "actors.desired", "actors.members", "actors.policies", "actors.slots"}
    | {"storage.ledger", "storage.managed", "storage.metadata"},
    "actors.admin": BASE | {"actors.members", "actors.policies", "actors.schemas", "actors.security"},
    "actors.processes": BASE
    | {"actors.broker", "actors.bookie", "actors.coordinator", "actors.desired", "actors.admin", "actors.security"}
    | {"storage.metadata"},
    "bulk.typed": BASE | {"actors.members", "actors.schemas", "client.schemas"},
    "bulk.writing": BASE | CLIENT | {"bulk"},
    "bulk": BASE | {"actors.members", "bulk.typed", "client.crypto", "storage.ledger", "storage.metadata"},
    "spark": BASE | CLIENT | {"bulk.writing", "spark.reading", "spark.source"},
    "spark.reading": BASE | {"bulk", "bulk.typed", "client.crypto", "spark.source"},
    "spark.source": BASE
    | {"actors.members", "actors.schemas", "bulk", "bulk.typed", "client.core", "bulk.writing", "client.schemas"}
    | {"storage.ledger"},
    "data": BASE | CLIENT | {"bulk", "bulk.typed", "bulk.writing"},
    "serve": BASE | CLIENT | {"bulk"},
    "tasks": BASE | CLIENT | {"bulk"},
    "cluster.terminal": BASE | CLIENT,
    "cluster.load": BASE | CLIENT | {"cluster.terminal"},
    "cluster.admin": BASE | {"actors.policies", "cluster.terminal"},
    "cluster": BASE
    | CLIENT
    | {"spark", "actors.processes", "actors.coordinator", "actors.desired", "actors.security"}
    | {"storage.backup", "storage.bookie", "storage.metadata"}
    | {"cluster.terminal", "cluster.load", "cluster.admin"},
    "cluster.demo": BASE | CLIENT | {"cluster", "spark"},
}
"""By sub-room: what its files may import, beside their own sub-room. `docs/design/architecture.md` says why."""

ROOMS = list(dict.fromkeys(room.partition(".")[0] for room in MAY_IMPORT))
HEAVY = {"ray", "raydp", "pyspark", "pandas", "numpy", "pyarrow"}
TEST_PACKAGES = {"chaos", "fuzz", "simulation", "support", "tools"}
"""What lies in `tests` and may be imported by tests and their programs."""
LOADED_LATE = {"bulk", "data", "serve", "spark"}
"""The rooms that need what is heavy. The top level loads them when they are first used."""
OPTIONAL = {"atheris", "kubernetes"}
"""What tests import only if it is there."""
TEST_NAME_MAX = 80


def sources() -> list[Path]:
    files = [ROOT / "__init__.py"]
    for room in ROOMS:
        files += sorted((ROOT / room).rglob("*.py"))
    return [file for file in files if not file.name.endswith("_pb2.py")]


def module_name(file: Path) -> str:
    """Dotted name below the root; the root itself is the empty string."""
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


class Imports(ast.NodeVisitor):
    """Collects what a file imports: of ours as names below the root, of others as top-level package names."""

    def __init__(self, file: Path) -> None:
        self.ours: set[str] = set()
        self.ours_for_types: set[str] = set()
        self.theirs: set[str] = set()
        self.theirs_at_import: set[str] = set()
        self.absolute_ours: list[int] = []
        self._package = list(file.relative_to(ROOT).parent.parts)
        self._depth = 0
        self._for_types = False
        self.visit(tree_of(file))

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            at_run_time, self.ours = self.ours, self.ours_for_types
            self._for_types = True
            for child in node.body:
                self.visit(child)
            self.ours, self._for_types = at_run_time, False
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def _foreign(self, name: str, line: int) -> None:
        if self._for_types:
            return
        top = name.partition(".")[0]
        if top == "magnetar":
            self.absolute_ours.append(line)
        self.theirs.add(top)
        if not self._depth:
            self.theirs_at_import.add(top)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._foreign(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level:
            self._foreign(node.module or "", node.lineno)
            return
        base = self._package[: len(self._package) - (node.level - 1)]
        base += node.module.split(".") if node.module else []
        for alias in node.names:
            target = ROOT.joinpath(*base, alias.name)
            if target.with_suffix(".py").exists() or target.is_dir():
                self.ours.add(".".join([*base, alias.name]))
            else:
                self.ours.add(".".join(base))


@pytest.fixture(scope="module")
def imports() -> dict[str, Imports]:
    return {module_name(file): Imports(file) for file in sources()}


def room_of(module: str) -> str:
    """The sub-room of a module, or of a sub-room's own `__init__`; the room for a file that lies directly in it."""
    name = module if (ROOT / module.replace(".", "/") / "__init__.py").exists() else module.rpartition(".")[0]
    return name or module


@pytest.mark.promise("29.2")
def test_sub_rooms_import_only_where_their_arrows_lead(imports: dict[str, Imports]) -> None:
    wrong: list[str] = []
    for module, found in imports.items():
        if not module:
            continue
        room = room_of(module)
        assert room in MAY_IMPORT, f"{room} is no sub-room: add it to MAY_IMPORT, or move {module}"
        for target in sorted(found.ours | found.ours_for_types):
            if room_of(target) not in MAY_IMPORT[room] | {room}:
                wrong.append(f"{module} imports {target or 'the root'}")
    assert not wrong, "\n".join(wrong)


def test_no_two_sub_rooms_may_import_each_other() -> None:
    def below(room: str) -> set[str]:
        found = set(MAY_IMPORT[room])
        for other in MAY_IMPORT[room]:
            found |= below(other)
        return found

    assert [room for room in MAY_IMPORT if room in below(room)] == []


def test_pyproject_lists_every_package_of_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {"magnetar"} | {
        "magnetar." + ".".join(file.parent.relative_to(ROOT).parts)
        for file in sources()
        if file.name == "__init__.py" and file.parent != ROOT
    }
    assert sorted(listed) == sorted(found)


def test_the_version_is_written_down_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "magnetar.protocol.names.VERSION"}
    assert magnetar.__version__ == names.VERSION


def test_no_file_repeats_its_rooms_name() -> None:
    rooms = {room: sorted((ROOT / room.replace(".", "/")).glob("*.py")) for room in MAY_IMPORT if "." in room}
    assert [str(file) for files in rooms.values() for file in files if file.stem == file.parent.name] == []


def test_imports_between_rooms_are_relative(imports: dict[str, Imports]) -> None:
    wrong = [f"{module}:{line}" for module, found in imports.items() for line in found.absolute_ours]
    assert not wrong, wrong


def test_modules_import_each_other_in_circles_only_for_types_of_their_own_sub_room(imports: dict[str, Imports]) -> None:
    finished: set[str] = set()
    path: list[str] = []

    def walk(module: str) -> None:
        if module in finished or module not in imports:
            return
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        path.append(module)
        neighbours = {one for one in imports[module].ours_for_types if room_of(one) == room_of(module)}
        for target in sorted(imports[module].ours | (imports[module].ours_for_types - neighbours)):
            walk(target)
        finished.add(path.pop())

    for module in imports:
        walk(module)


@cache
def is_there(module: str) -> bool:
    """Whether a module that a test imports exists: of ours below `tests`, else one that is installed."""
    top = module.partition(".")[0]
    if top in TEST_PACKAGES:
        place = ROOT / "tests" / module.replace(".", "/")
        return place.with_suffix(".py").exists() or (place / "__init__.py").exists()
    return top in sys.stdlib_module_names or top in OPTIONAL or importlib.util.find_spec(top) is not None


class FileOfTests(NamedTuple):
    """What a file of `tests` imports, each name with its line, and the names of its functions."""

    imported: list[tuple[int, str]]
    functions: list[str]


@pytest.fixture(scope="module")
def files_of_tests() -> dict[Path, FileOfTests]:
    found: dict[Path, FileOfTests] = {}
    for file in sorted((ROOT / "tests").rglob("*.py")):
        found[file] = FileOfTests([], [])
        for node in read_nodes(file):
            if isinstance(node, ast.Import):
                found[file].imported.extend((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found[file].imported.append((node.lineno, node.module or ""))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[file].functions.append(node.name)
    return found


def test_whatever_a_test_imports_exists(files_of_tests: dict[Path, FileOfTests]) -> None:
    """`tests` is on the path, its folders are not: `from support.files.faulty_files import …`."""
    wrong = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file, found in files_of_tests.items()
        for line, name in found.imported
        if not is_there(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_names_of_tests_have_at_most_80_characters(files_of_tests: dict[Path, FileOfTests]) -> None:
    long = [
        f"{file.relative_to(ROOT)}: {name}"
        for file, found in files_of_tests.items()
        if file.name.startswith("test_")
        for name in found.functions
        if name.startswith("test_") and len(name) > TEST_NAME_MAX
    ]
    assert not long, long


def test_every_module_says_what_it_is() -> None:
    silent = [str(file.relative_to(ROOT)) for file in sources() if not ast.get_docstring(tree_of(file))]
    assert not silent, silent


def test_services_and_client_never_load_ray_or_spark_at_import(imports: dict[str, Imports]) -> None:
    wrong = {
        module: heavy
        for module, found in imports.items()
        if module.partition(".")[0] not in LOADED_LATE and (heavy := found.theirs_at_import & HEAVY)
    }
    assert not wrong, wrong


def check_in_a_new_process(code: str) -> None:
    """Run code in a Python that has imported nothing yet; what it exits with is why the test fails."""
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, result.stderr


def test_importing_magnetar_is_light() -> None:
    code = (
        "import sys, magnetar, magnetar.client, magnetar.cluster\n"
        f"heavy = sorted({HEAVY!r} & set(sys.modules))\n"
        "sys.exit(f'import magnetar loads {heavy}' if heavy else 0)"
    )
    check_in_a_new_process(code)


def test_the_process_of_a_member_starts_without_the_modules_of_services() -> None:
    """Each process of a cluster imports `ray_actors`; what a service needs comes when that service is built."""
    rooms = ("admin", "auditor", "bookie", "broker", "coordinator")
    code = (
        "import sys, magnetar.actors.processes.ray_actors\n"
        f"services = tuple(f'magnetar.actors.{{room}}.' for room in {rooms!r})\n"
        "early = sorted(one for one in sys.modules if one == 'sqlalchemy' or one.startswith(services))\n"
        "sys.exit(f'they are loaded too early: {early}' if early else 0)"
    )
    check_in_a_new_process(code)


@pytest.mark.parametrize("room", ["protocol", "storage", "client", "actors"])
def test_services_open_no_files_themselves(room: str) -> None:
    """The part of ruff's banned-api rule that ruff does not see: the builtin."""
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources()
        if file.relative_to(ROOT).parts[0] == room
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    ]
    assert not wrong, wrong
