"""Where tests and what they share lie: the simulator's sub-packages, and which of them may import which."""

import ast
from pathlib import Path

SIMULATION = Path(__file__).resolve().parents[1] / "simulation"

ENTRY_POINTS = {"run.py", "gate.py", "explore.py", "coverage_report.py"}
"""What the Makefile runs, and beside each the tests of the program as a whole."""
TESTS_OF_ENTRY_POINTS = {"test_seeds.py", "test_gate.py"}

MAY_IMPORT: dict[str, set[str]] = {
    "world": set(),
    "checkers": {"world"},
    "workloads": {"world", "checkers"},
    "faults": {"world", "checkers", "workloads"},
    "scenarios": {"world", "checkers", "workloads", "faults"},
    "explorer": set(),
    "mutants": {"explorer"},
}
"""By sub-package of the simulator: what its files may import, beside their own. Tests there may import anything."""


def imported(file: Path) -> set[str]:
    """Which sub-packages of the simulator a file imports, its own left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
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
