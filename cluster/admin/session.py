"""One admin HTTP, asked with the standard library."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast
from urllib.parse import urlencode

from ...protocol.errors import ClusterError
from ...protocol.path_encoding import encoding_of
from ...protocol.plain_values import is_text_map
from ...runtime.http_opener import direct_opener, failure
from ...runtime.tls_contexts import SYSTEM_TLS, ClientTls

TIMEOUT_S = 90.0
"""Unloading and deleting may take a while."""
ANSWER_SIZE_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class AdminAnswer:
    body: bytes
    headers: Mapping[str, str]

    def value(self) -> object:
        """The body as JSON, or as text if it is none. None for an empty one."""
        if not self.body:
            return None
        try:
            return cast("object", json.loads(self.body))
        except ValueError:
            return self.body.decode(errors="replace")


class Refused(ClusterError):
    """The admin answered with an error. `status` is that of HTTP."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(f"{reason} ({status} {http.client.responses.get(status, 'unknown status')})", status=status)


class AdminSession:
    """Sends requests to one admin HTTP. `headers` prove who asks."""

    def __init__(
        self,
        url: str,
        tls: ClientTls = SYSTEM_TLS,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self._headers = dict(headers or {})
        self._tls = tls
        self._timeout_s = timeout_s

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        return direct_opener(self.url, self._tls)

    def ask(
        self, method: str, path: str, parts: Mapping[str, str], query: Mapping[str, object], body: object = None
    ) -> AdminAnswer:
        """Send a request. `parts` fill the places of the path. Raises Refused, ConnectError."""
        filled = path.format_map({name: encoding_of(name).encode(part) for name, part in parts.items()})
        given = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in query.items()}
        url = f"{self.url}{filled}" + (f"?{urlencode(given)}" if given else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **({} if data is None else {"Content-Type": "application/json"})}
        request = urllib.request.Request(url, data=data, headers=headers | self._headers, method=method)
        opener = self._opener  # what it raises is no failure of the request
        try:
            with opener.open(request, timeout=self._timeout_s) as found:
                answer = cast("http.client.HTTPResponse", found)
                return AdminAnswer(answer.read(ANSWER_SIZE_MAX_BYTES), dict(answer.headers.items()))
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(_reason(error.read(ANSWER_SIZE_MAX_BYTES)), error.code) from None
        except (OSError, http.client.HTTPException) as error:
            raise failure(f"the admin HTTP at {self.url}", self.url, error) from error


def _reason(body: bytes) -> str:
    try:
        found = cast("object", json.loads(body))
    except ValueError:
        found = None
    if is_text_map(found) and isinstance(found.get("reason"), str):
        return cast("str", found["reason"])
    return body.decode(errors="replace").strip()[:500] or "the admin gave no reason"
