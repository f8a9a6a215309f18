"""What `make test` prints of its costs."""

from tools.print_costs import read, report

LINES = """\
collection\t2.000\t1.500
unit/test_a.py::test_one[a\tb]\t1.000\t0.500
unit/runtime/test_b.py::test_two\t3.000\t0.250
integration/test_c.py::test_three\t20.000\t1.000
integration/nodes/test_d.py::test_four\t40.000\t2.000
"""


def test_parts_and_the_dearest_tests_are_listed_dearest_first() -> None:
    assert report(read(LINES.splitlines())).splitlines() == [
        "part                  tests   seconds  CPU seconds",
        "integration/nodes         1        40            2",
        "integration               1        20            1",
        "unit                      2         4            1",
        "collection                1         2            2",
        "",
        "the 10 dearest tests, in seconds and CPU seconds",
        "    40.0      2.0  integration/nodes/test_d.py::test_four",
        "    20.0      1.0  integration/test_c.py::test_three",
        "     3.0      0.2  unit/runtime/test_b.py::test_two",
        "     1.0      0.5  unit/test_a.py::test_one[a\tb]",
    ]


def test_only_the_dearest_tests_are_listed() -> None:
    text = report(read(f"unit/test_a.py::test_{number}\t{number}.0\t0.0" for number in range(30)))
    assert text.splitlines()[-10:] == [
        f"{number:8.1f} {0:8.1f}  unit/test_a.py::test_{number}" for number in range(29, 19, -1)
    ]
