"""A hook of the site: diagrams in Mermaid become pictures while it is built, so that no page loads a script for them.

`mkdocs.yml` names this file. A diagram that cannot be drawn fails the build.
"""

import re
from typing import Any

import mmdr

FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def picture(source: str) -> str:
    """A diagram as one line of SVG, which Markdown leaves as it is."""
    return f"<figure>{' '.join(mmdr.render(source).svg().split())}</figure>"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page, with its text."""
    return FENCE.sub(lambda found: picture(found[1]), markdown)
