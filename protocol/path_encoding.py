"""How names stand in the paths of the admin's HTTP: as Pulsar's own tools send them.

They do not encode all names alike, so each parameter of a path has its `PathEncoding`:

- *The name of a topic* is form-encoded: a space is a plus.
- *The name of a topic's subscription* is form-encoded, and the outcome is encoded once more, by the rules of paths.
- *Everything else* is encoded by the rules of paths: a plus is a plus. Where a path of a namespace names a
  subscription, Pulsar's broker decodes by these rules, too, although its tool sends a space as a plus.
"""

import re
from enum import Enum
from urllib.parse import quote, quote_plus, unquote_to_bytes

_BROKEN_ESCAPE = re.compile("%(?![0-9a-fA-F]{2})")


class PathEncoding(Enum):
    PATH = "path"
    FORM = "form"
    FORM_IN_PATH = "form in path"

    def encode(self, name: str) -> str:
        """A name as a part of a path."""
        if self is PathEncoding.PATH:
            return quote(name, safe="")
        form = quote_plus(name, safe="")
        return form if self is PathEncoding.FORM else quote(form, safe="")

    def decode(self, part: str) -> str:
        """The name in a part of a path. Raises ValueError for an escape that is none, and for bytes that are no UTF-8.

        A part that a lenient decoder took as it is would name something else than was meant.
        """
        if self is not PathEncoding.FORM:
            part = _unescaped(part)
        return part if self is PathEncoding.PATH else _unescaped(part.replace("+", " "))


_OTHERS = {"topic": PathEncoding.FORM, "subscription": PathEncoding.FORM_IN_PATH}


def encoding_of(parameter: str) -> PathEncoding:
    return _OTHERS.get(parameter, PathEncoding.PATH)


def _unescaped(text: str) -> str:
    if "%" not in text:
        return text
    if _BROKEN_ESCAPE.search(text):
        raise ValueError(f"a percent sign stands without two hexadecimal digits in {text[:100]!r}")
    return unquote_to_bytes(text).decode()
