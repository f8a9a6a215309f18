"""Requests that schemathesis makes up from the OpenAPI description, against a real cluster.

None may fail inside the server, and each answer must be one that the description has. Half of the names in paths are
those of topics and subscriptions that there are, so that requests get beyond the search for them.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import magnetar
from magnetar.actors.admin.openapi import MAY_BE_EMPTY

EXAMPLES_EACH = 2
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN: dict[str, list[Any]] = {
    "tenant": ["public"],
    "namespace": ["default"],
    "topic": ["topic", "parts", "parts-partition-0"],
    "subscription": ["s"],
    "cluster": ["magnetar"],
    "position": [1],
    "messages": [0, 1],
    "ledger": [0, 1],
    "entry": [0],
}


@pytest.fixture(scope="module")
def admin_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The admin of a small cluster that has topics with messages and a subscription."""
    directory = tmp_path_factory.mktemp("cluster")
    with magnetar.start(
        embedded=True,
        brokers=1,
        bookies=1,
        ensemble="1/1/1",
        port=0,
        admin_port=0,
        data_dir=directory,
        settings={"allowAckQuorumOfOne": "true"},
    ) as cluster:
        with magnetar.Client(cluster.service_url) as client:
            client.subscribe("topic", "s").close()
            client.create_producer("topic").send(b"one")
        _ask(cluster.admin_url, "PUT", "/admin/v2/persistent/public/default/parts/partitions", 2)
        yield cluster.admin_url


def _ask(admin_url: str, method: str, path: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(admin_url + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as response:
        return response.read()


@pytest.mark.promise("32.9")
def test_no_request_that_the_description_allows_fails_or_is_answered_otherwise(admin_url: str) -> None:
    description = json.loads(_ask(admin_url, "GET", "/admin/v2/openapi.json"))
    schema = schemathesis.openapi.from_dict(description)
    names = st.fixed_dictionaries({name: st.none() | st.sampled_from(values) for name, values in KNOWN.items()})
    asked = 0

    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES_EACH,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), known=names)
        def ask(case: schemathesis.Case, known: dict[str, Any]) -> None:
            for name in case.path_parameters or {}:
                if known.get(name) is not None:
                    case.path_parameters[name] = known[name]
            response = case.call(base_url=admin_url)
            answer = case.operation.definition.raw["responses"].get(str(response.status_code), {})
            is_empty = not response.content and answer.get(MAY_BE_EMPTY, False)
            case.validate_response(response, checks=[not_a_server_error] if is_empty else CHECKS)

        ask()
        asked += 1
    assert asked == sum(len(item) for item in description["paths"].values())
    assert _ask(admin_url, "GET", "/admin/v2/brokers/health") == b"ok"


def test_properties_of_a_subscription_are_texts_of_bounded_size(admin_url: str) -> None:
    path = "/admin/v2/persistent/public/default/topic/subscription/s/properties"
    _ask(admin_url, "PUT", path, {"a": "b"})
    for wrong, status in (([], 400), ({"a": ["b"]}, 400), ({"a": "x" * (16 << 10)}, 412)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            _ask(admin_url, "PUT", path, wrong)
        refused.value.close()
        assert refused.value.code == status
    assert json.loads(_ask(admin_url, "GET", path)) == {"a": "b"}
