"""Generate pages of `docs/`: settings, metrics, admin paths, policies, errors, the Python API, mutants, and what
Magnetar promises. The chart's schema gets the names of the settings.

    python tests/tools/generate_reference.py [--output DIRECTORY]

Without `--output` the committed pages are replaced (`make reference`). A unit test fails while they differ.
"""

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from tools import chart_schema, promises, reference_api, reference_mutants, reference_pages

ROOT = Path(__file__).resolve().parents[2]


def pages() -> dict[str, str]:
    """File name → text of each page."""
    promised = promises.load()
    return {
        "settings.md": reference_pages.settings(),
        "metrics.md": reference_pages.metrics(),
        "admin.md": reference_pages.admin(),
        "policies.md": reference_pages.policies(),
        "errors.md": reference_pages.errors(),
        "python-api.md": reference_api.python_api(),
        "mutants.md": reference_mutants.mutants(),
        "promises.md": promises.tests_of(promised),
        "FEATURES.md": promises.features(promised),
    }


def place(docs: Path, name: str) -> Path:
    """Where a page lies: the page of features in `docs`, the others in `docs/reference`."""
    return docs / name if name == "FEATURES.md" else docs / "reference" / name


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate pages of docs/ from the code and from the marks of tests.")
    parser.add_argument("--output", type=Path, default=ROOT / "docs", help="where the pages go")
    output: Path = parser.parse_args().output
    for name, text in pages().items():
        page = place(output, name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
        print(page)
    if output == ROOT / "docs":
        chart_schema.SCHEMA.write_text(chart_schema.chart_schema())
        print(chart_schema.SCHEMA)


if __name__ == "__main__":
    main()
