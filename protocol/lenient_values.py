"""Numbers, flags and texts in the JSON of requests, as Pulsar's broker takes them.

Many tools write a number or a flag with quotes. Pulsar's broker (Jackson) takes those, and so do these functions. Each
returns the value that is meant, or the value itself where Jackson refuses it: the caller's own check then refuses it.

Jackson also takes a number with a fraction for a whole one, and makes 1 of 1.5. It takes null or an empty text for a
number or a flag, and makes 0 of it, which is mostly "no limit", or false. Nobody means that, so the caller's check
refuses these.
"""

import json
import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_REAL = re.compile(r"[+-]?([0-9]{1,19}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?", re.ASCII)
_FLAGS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def as_whole(value: object) -> object:
    """A whole number: also as a text, and as a number without a fraction such as 7.0."""
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def as_real(value: object) -> object:
    """A number: also as a text."""
    return float(value) if isinstance(value, str) and _REAL.fullmatch(value.strip()) else value


def as_flag(value: object) -> object:
    """True or false: also as a text, and as a whole number, of which 0 is false."""
    if isinstance(value, str):
        return _FLAGS.get(value.strip(), value)
    return value != 0 if type(value) is int else value


def as_text(value: object) -> object:
    """A text: also a number or a flag without quotes."""
    return json.dumps(value) if isinstance(value, bool | int | float) else value
