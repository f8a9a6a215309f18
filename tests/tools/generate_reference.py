"""Generate `docs/reference/` from the code: settings, metrics, admin paths, policies, errors, the Python API, mutants.
The chart's schema gets the names of the settings.

    python tests/tools/generate_reference.py [--output DIRECTORY]

Without `--output` the committed pages are replaced (`make reference`). A unit test fails while they differ.
"""

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from tools import chart_schema, reference_api, reference_mutants, reference_pages

ROOT = Path(__file__).resolve().parents[2]


def pages() -> dict[str, str]:
    """File name → text of each page."""
    return {
        "settings.md": reference_pages.settings(),
        "metrics.md": reference_pages.metrics(),
        "admin.md": reference_pages.admin(),
        "policies.md": reference_pages.policies(),
        "errors.md": reference_pages.errors(),
        "python-api.md": reference_api.python_api(),
        "mutants.md": reference_mutants.mutants(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate docs/reference/ from the code.")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "reference", help="where the pages go")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (output / name).write_text(text)
        print(output / name)
    if output == ROOT / "docs" / "reference":
        chart_schema.SCHEMA.write_text(chart_schema.chart_schema())
        print(chart_schema.SCHEMA)


if __name__ == "__main__":
    main()
