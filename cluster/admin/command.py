"""What a command of `magnetar admin` is: one row of a table. Words in braces are filled with the parts of a request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from .arguments import Argument, ArgumentPlace
from .output import Table
from .session import AdminSession

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACE_PATH = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC_PATH = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION_PATH = TOPIC_PATH + "/subscription/{subscription}"
SCHEMA_PATH = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


ArgumentValues = Mapping[str, object]
"""The arguments that were given, read, by name."""
RunCommand = Callable[[AdminSession, "Command", ArgumentValues], object]
"""Asks more than one request. Returns what is shown."""


@dataclass(frozen=True)
class Command:
    """One row. `table` says how the answer is shown; without one, each value is shown as it is.

    `run` is for commands that are more than one request. `routes` are then the method and path of each.
    """

    words: str
    """Noun and verb."""
    help: str
    route: str
    """Method and path."""
    arguments: "Sequence[Argument]" = ()
    table: Table | None = None
    run: RunCommand | None = None
    routes: tuple[tuple[str, str], ...] = ()

    @property
    def noun(self) -> str:
        return self.words.split()[0]

    @property
    def verb(self) -> str:
        return self.words.split()[1]

    @property
    def method(self) -> str:
        return self.route.split()[0]

    @property
    def path(self) -> str:
        return self.route.split()[1]

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        """Every method and path that it asks."""
        return self.routes or ((self.method, self.path),)

    def named(self, noun: str, verb: str = "") -> "Command":
        """The same command under another name."""
        return replace(self, words=f"{noun} {verb or self.verb}")

    def execute(self, session: AdminSession, values: ArgumentValues) -> object:
        """Ask, and return what is shown. Raises Refused, ConnectError."""
        return self.run(session, self, values) if self.run is not None else self.ask(session, values)

    def ask(
        self, session: AdminSession, values: ArgumentValues, method: str = "", path: str = "", **parts: str
    ) -> object:
        """One request with these values; another method, path or more parts of the path, if given."""
        filled, query, body = self.request(values)
        return session.ask(method or self.method, path or self.path, {**filled, **parts}, query, body).value()

    def request(self, values: ArgumentValues) -> tuple[dict[str, str], dict[str, object], object]:
        """The parts of the path, the query, and the body."""
        parts: dict[str, str] = {}
        query: dict[str, object] = {}
        fields: dict[str, object] = {}
        body: object = None
        for argument in self.arguments:
            value = values.get(argument.name)
            if value is None:
                continue
            match argument.place:
                case ArgumentPlace.PATH if isinstance(value, Mapping):
                    parts |= cast("Mapping[str, str]", value)
                case ArgumentPlace.PATH:
                    parts[argument.word] = str(value)
                case ArgumentPlace.QUERY:
                    query[argument.word] = value
                case ArgumentPlace.FIELD:
                    fields[argument.word] = value
                case ArgumentPlace.BODY:
                    body = value
                case ArgumentPlace.NOWHERE:
                    pass
        if body is None and any(argument.place is ArgumentPlace.FIELD for argument in self.arguments):
            body = fields
        return parts, query, body
