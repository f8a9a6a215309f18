"""Requests to the admin HTTP of the cluster that is measured."""

import json
import urllib.request
from typing import Any


def ask(method: str, url: str, body: Any = None) -> Any:
    """The answer to a request, None for an empty one. Raises HTTPError for a refusal."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None
