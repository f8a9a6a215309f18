"""URLs of metadata stores: what is one, and how it is shown.

A URL may hold a password. Whatever is printed, logged or put into an error goes through `shown_url`. A text that is no
URL may hold a password, too, and goes through `masked`. The parser's own errors are never shown: they quote parts.
"""

import os.path
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..protocol.errors import SettingError

if TYPE_CHECKING:
    # SQLAlchemy takes a quarter of a second to import. Bookies, brokers and the admin never use it.
    from sqlalchemy.engine import URL

SECRET_OPTIONS = ("password", "sslpassword")
"""Options of libpq that a URL may hold behind its question mark."""
OPTIONS_OF_ACCESS = (*SECRET_OPTIONS, "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "target_session_attrs")
"""Options that say how a database is reached, not which one it is."""
_CREDENTIALS = re.compile(r"^(\w[\w+.-]*://)?.*@", re.DOTALL)
_SECRETS = re.compile(r"(password\s*=\s*)('[^']*'?|[^&\s]*)", re.IGNORECASE)
_HOSTS = re.compile(r"[^/?]*")
_USER = re.compile(r"[^:/]*(:[^@]*)?@")


def parse_url(url: str) -> "URL":
    """Raises SettingError for what is no URL of a metadata store.

    As in libpq, a URL may name several hosts, `postgresql://user@a:5432,b:5433/database`, or `?host=a,b`. The one is
    taken that can be written to.
    """
    from sqlalchemy.engine import make_url

    try:
        parsed = make_url(_with_hosts_as_option(url))
    except Exception:  # ArgumentError, or ValueError from a port that is no number
        raise _no_url(url) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or not os.path.isabs(parsed.database):
            raise SettingError(
                f"{masked(url)!r} must name a file by its absolute path: sqlite:////path/metadata.sqlite"
            )
        return parsed
    if backend in ("postgresql", "postgres"):
        if "@" in (parsed.host or ""):
            raise _no_url(url)  # the rest of a password that holds the character itself
        if "," in str(parsed.query.get("host", "")) and "target_session_attrs" not in parsed.query:
            parsed = parsed.update_query_dict({"target_session_attrs": "read-write"})
        return parsed.set(drivername="postgresql+psycopg")
    raise SettingError(f"the metadata store cannot be {backend}: use sqlite or postgresql")


def shown_url(url: "str | URL") -> str:
    """A URL without its password."""
    parsed = _without(parse_url(url) if isinstance(url, str) else url, SECRET_OPTIONS)
    return parsed.set(drivername=parsed.get_backend_name()).render_as_string()


def masked(text: str) -> str:
    """A text that an operator gave in place of a URL, without what may be a password."""
    return _SECRETS.sub(r"\1***", _CREDENTIALS.sub(r"\1***@", text))


def is_same_place(one: str, other: str) -> bool:
    """Whether two URLs differ only in how the database is reached: by which password, and with which encryption."""
    return _place(one) == _place(other)


def _place(url: str) -> "URL":
    return _without(parse_url(url), OPTIONS_OF_ACCESS)


def _without(url: "URL", options: Iterable[str]) -> "URL":
    """A URL without its password and some options. `URL.set(password=None)` would change nothing."""
    from sqlalchemy.engine import URL

    query = url.difference_update_query(options).query
    return URL.create(url.drivername, url.username, None, url.host, url.port, url.database, query)


def _no_url(url: str) -> SettingError:
    return SettingError(
        f"{masked(url)!r} is not the URL of a metadata store: write postgresql://user@host:5432/database, with "
        "percent-encoded special characters (%40 for @)"
    )


def _with_hosts_as_option(url: str) -> str:
    """The hosts of libpq's form, separated by commas, as the options that SQLAlchemy hands on."""
    scheme, found, rest = url.partition("://")
    user = match.group() if (match := _USER.match(rest)) is not None else ""
    hosts, path = _split(rest.removeprefix(user))
    if not found or "," not in hosts:
        return url
    pairs = [one.rpartition(":") if _has_port(one) else (one, "", "") for one in hosts.split(",")]
    names = ",".join(name.strip("[]") for name, _, _ in pairs)
    ports = ",".join(port or "5432" for _, _, port in pairs)
    return f"{scheme}://{user}/{path}{'&' if '?' in path else '?'}host={names}&port={ports}"


def _split(rest: str) -> tuple[str, str]:
    """The hosts, and what stands behind them."""
    hosts = _HOSTS.match(rest)
    length = hosts.end() if hosts is not None else 0
    return rest[:length], rest[length:].removeprefix("/")


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]
