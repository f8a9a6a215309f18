"""Blocking calls of a running cluster's admin HTTP."""

import json
import urllib.request
from typing import Any


class AdminCalls:
    """Calls below `/admin/v2`. A refusal raises what urllib raises."""

    def __init__(self, admin_url: str) -> None:
        self._url = f"{admin_url}/admin/v2"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer, from JSON; None where there is none."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, method=method, data=data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None
