"""Answers of the admin, and the lines of a transcript that show them."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .normalizing import Names, comment, json_lines

_INDEX = re.compile(r"\[\d+\]")


class Answer(NamedTuple):
    """Of the admin. `body` is the JSON, or the text if it is not JSON."""

    status: int
    body: Any
    headers: Mapping[str, str]


def parsed(body: bytes) -> Any:
    """A body as JSON, or as text if it is not JSON."""
    try:
        return json.loads(body) if body else ""
    except ValueError:
        return body.decode(errors="replace")


def answer_lines(names: Names, answer: Answer, only: Iterable[str] | None = None, headers: str = "") -> Iterator[str]:
    """Status and body; of a refusal, whether it has a reason.

    `only` names the fields of a JSON body that are shown, by the paths that the transcript shows, without indexes. A
    name ending in `.` means everything below it. Lists of texts are shown in order of the alphabet, as servers list
    topics in any order. Headers whose name begins with `headers` are shown, too.
    """
    shown = sorted(answer.body) if is_list_of_texts(answer.body) else answer.body
    yield f"status {answer.status}"
    if answer.status >= 300:
        reason = shown.get("reason") if isinstance(shown, dict) else None
        yield "a JSON body with a reason" if isinstance(reason, str) else "another body"
        yield from comment(names, reason if isinstance(reason, str) else str(shown))
    elif shown == "":
        yield "no body"
    else:
        yield from chosen(json_lines(names, shown), [names.text(one) for one in only] if only else None)
    if headers:
        found = {name.lower(): value for name, value in answer.headers.items() if name.lower().startswith(headers)}
        yield from (f"{name}: {names.position(found[name])}" for name in sorted(found))


def is_list_of_texts(body: Any) -> bool:
    """Such as the names of topics."""
    return isinstance(body, list) and all(isinstance(one, str) for one in body)


def chosen(lines: Iterable[str], only: Iterable[str] | None) -> list[str]:
    """The lines of the fields that are asked for."""
    if only is None:
        return [*lines]
    wanted = tuple(only)
    exact = {name for name in wanted if not name.endswith(".")}
    below = tuple(name for name in wanted if name.endswith("."))
    out = []
    for line in lines:
        path = _INDEX.sub("", line.partition(" = ")[0])
        if path in exact or (below and path.startswith(below)):
            out.append(line)
    return out
