"""Where tests and what they share lie.

Unit tests mirror the rooms: each directory of `tests/unit` is called like the room, sub-room or package of tests that
its files test. The simulator has sub-packages, and arrows say which of them may import which.
"""

import ast
from functools import cache
from pathlib import Path

from tools.syntax import read_nodes

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
SIMULATION = ROOT / "tests" / "simulation"

ROOMS = ("protocol", "runtime", "storage", "client", "actors", "bulk", "data", "serve", "spark", "tasks", "cluster")

ENTRY_POINTS = {"run.py", "gate.py", "explore.py", "coverage_report.py", "scale.py"}
"""What the Makefile runs, and beside each the tests of the program as a whole."""
TESTS_OF_ENTRY_POINTS = {"test_seeds.py", "test_gate.py", "test_scale.py"}

MAY_IMPORT: dict[str, set[str]] = {
    "world": set(),
    "checkers": {"world"},
    "workloads": {"world", "checkers"},
    "faults": {"world", "checkers", "workloads"},
    "scenarios": {"world", "checkers", "workloads", "faults"},
    "explorer": set(),
    "scaling": set(),
    "mutants": {"explorer"},
}
"""By sub-package of the simulator: what its files may import, beside their own. Tests there may import anything."""


def rooms() -> set[str]:
    """Rooms and sub-rooms, and the packages of tests that have tests themselves, as paths below the root or `tests`."""
    production = {file.parent.relative_to(ROOT) for room in ROOMS for file in (ROOT / room).rglob("__init__.py")}
    helpers = {file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("__init__.py")}
    return {str(place) for place in production | helpers}


def test_each_directory_of_unit_tests_is_called_like_what_it_tests() -> None:
    places = {str(file.parent.relative_to(UNIT)) for file in UNIT.rglob("*.py")} - {"."}
    assert sorted(places - rooms()) == []


def test_unit_tests_of_storage_and_actors_lie_in_their_sub_rooms() -> None:
    """These two rooms have no files of their own."""
    assert [str(file.relative_to(UNIT)) for room in ("storage", "actors") for file in (UNIT / room).glob("*.py")] == []


@cache
def modules_of(file: Path) -> frozenset[str]:
    """What a file imports, by dotted names below the root or `tests`; what `support` imports for it counts, too."""
    found: set[str] = set()
    for node in read_nodes(file):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = file.relative_to(ROOT / "tests").parts[: -node.level] if node.level else ()
        module = ".".join([*base, *filter(None, [node.module])])
        for name in (f"{module}.{alias.name}" for alias in node.names):
            found.add(name.removeprefix("magnetar."))
            helper = ROOT / "tests" / (name if module == "support" else module).replace(".", "/")
            if module.startswith("support") and helper.with_suffix(".py").exists():
                found |= modules_of(helper.with_suffix(".py"))
    return frozenset(found)


def test_a_unit_test_imports_something_of_the_room_that_it_lies_in() -> None:
    wrong = [
        str(file.relative_to(UNIT))
        for file in sorted(UNIT.rglob("*/test_*.py"))
        if not any(found.startswith(".".join(file.relative_to(UNIT).parent.parts) + ".") for found in modules_of(file))
    ]
    assert wrong == []


def imported(file: Path) -> set[str]:
    """Which sub-packages of the simulator a file imports, its own left out."""
    found: set[str] = set()
    for node in read_nodes(file):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            found |= {(node.module or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "simulation":
            found.add((node.module or "").partition(".")[2] or "simulation")
    return found


def test_each_file_of_the_simulator_is_in_a_sub_package_or_an_entry_point() -> None:
    here = {file.name for file in SIMULATION.glob("*.py")}
    assert here == {"__init__.py"} | ENTRY_POINTS | TESTS_OF_ENTRY_POINTS
    folders = {str(file.parent.relative_to(SIMULATION)) for file in SIMULATION.rglob("*/*.py")}
    assert folders == set(MAY_IMPORT)


def test_the_makefile_runs_each_entry_point_of_the_simulator() -> None:
    makefile = (SIMULATION.parents[1] / "Makefile").read_text()
    assert [name for name in sorted(ENTRY_POINTS) if f"python tests/simulation/{name}" not in makefile] == []


def test_sub_packages_of_the_simulator_import_only_where_their_arrows_lead() -> None:
    wrong = {
        str(file.relative_to(SIMULATION)): sorted(found)
        for folder, allowed in MAY_IMPORT.items()
        for file in sorted((SIMULATION / folder).glob("*.py"))
        if not file.name.startswith("test_") and (found := imported(file) - allowed)
    }
    assert wrong == {}


def test_sub_packages_of_the_simulator_say_what_they_are_and_re_export_nothing() -> None:
    bodies = {folder: ast.parse((SIMULATION / folder / "__init__.py").read_text()) for folder in MAY_IMPORT}
    assert [folder for folder, tree in bodies.items() if not ast.get_docstring(tree) or len(tree.body) != 1] == []
