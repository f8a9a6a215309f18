"""The commands of `schemas`."""

from .arguments import TOPIC, Argument, ArgumentPlace, json_file, option, whole
from .command import SCHEMA_PATH, ArgumentValues, Command
from .output import Table
from .session import AdminSession

VERSION_PATH = SCHEMA_PATH + "/schema/{version}"
ALL_PATH = f"{SCHEMA_PATH}/schemas"
_VERSIONS = Table((), {"getSchemaResponses": ("version", "type", "timestamp", "data", "properties")})
_FILE = Argument(
    "filename",
    'A file with {"type": …, "schema": …, "properties": {…}} in JSON.',
    ("-f", "--filename"),
    ArgumentPlace.BODY,
    json_file,
)


def _get(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    """The latest version, the one that was asked for, or all."""
    if values.get("all"):
        return command.ask(session, values, path=ALL_PATH)
    return command.ask(session, values, path="" if values.get("version") is None else VERSION_PATH)


def _schema(verb: str, help: str, route: str, *more: Argument) -> Command:
    method, _, path = route.partition(" ")
    return Command(f"schemas {verb}", help, f"{method} {SCHEMA_PATH}{path}", (TOPIC, *more))


SCHEMAS = (
    Command(
        "schemas get",
        "Show the schema of a topic.",
        f"GET {SCHEMA_PATH}/schema",
        (
            TOPIC,
            option("version", "-v --version", "This version; by default the latest.", ArgumentPlace.PATH, read=whole),
            option("all", "-a --all-version", "All versions.", ArgumentPlace.NOWHERE, switch=True),
        ),
        _VERSIONS,
        _get,
        (("GET", f"{SCHEMA_PATH}/schema"), ("GET", VERSION_PATH), ("GET", ALL_PATH)),
    ),
    _schema("upload", "Add a schema to a topic.", "POST /schema", _FILE),
    _schema(
        "delete",
        "Delete all versions of a topic's schema.",
        "DELETE /schema",
        option("force", "-f --force", "Let versions begin with 0 again.", switch=True),
    ),
    _schema("metadata", "List the numbers of the versions.", "GET /metadata"),
    _schema("compatibility", "Say whether a topic may get a schema.", "POST /compatibility", _FILE),
    _schema("version", "Show which version has exactly this schema.", "POST /version", _FILE),
)
