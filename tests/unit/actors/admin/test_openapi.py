"""The OpenAPI description says what the HTTP server serves, and its schemas say what the code makes and takes."""

import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from aiohttp import web

from magnetar.actors.admin.openapi import document
from magnetar.actors.admin.routes import PATH_PARAMETERS
from magnetar.actors.admin.service import add_routes
from magnetar.actors.admin.shapes import example_of, shape_of
from magnetar.actors.admin.topic_figures import storage_json, topic_json
from magnetar.actors.admin.topic_routes import TOPIC_SHAPE
from magnetar.actors.policies.effective import POLICIES
from magnetar.protocol.topic_figures import StorageFigures
from support.fakes.topic_figures import storage_figures, topic_figures
from tools.reference_pages import admin_service

ROUTES = admin_service().routes
DESCRIPTION: Any = document(ROUTES)
OPERATIONS = [operation for path in DESCRIPTION["paths"].values() for operation in path.values()]


def test_the_description_has_exactly_the_paths_that_the_server_serves() -> None:
    application = web.Application()
    add_routes(application, ROUTES, lambda route: route.handler)
    served = {
        (route.method, route.resource.canonical)
        for route in application.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    described = {(method.upper(), path) for path, item in DESCRIPTION["paths"].items() for method in item}
    assert described == served


def test_every_operation_has_a_name_of_its_own_and_a_text() -> None:
    names = [operation["operationId"] for operation in OPERATIONS]
    assert len({*names}) == len(names)
    assert [operation["operationId"] for operation in OPERATIONS if not operation["summary"].endswith(".")] == []


def test_every_declared_parameter_of_paths_is_in_some_path() -> None:
    used = {name for path in DESCRIPTION["paths"] for name in re.findall(r"\{(\w+)\}", path)}
    assert used == {*PATH_PARAMETERS}


def test_the_schema_of_a_policy_takes_the_values_that_fit_and_no_others() -> None:
    values = [0, -1, 7, 1 << 31, 1 << 63, 1.5, True, "x", "FULL", None, [], {}, {"retentionTimeInMinutes": 1}]
    values += [{"policy": "x"}, {"message_age": {"limitTime": 1}}, {"other": {}}, {"publishThrottlingRateInMsg": "1"}]
    for name, policy in POLICIES.items():
        for value in values:
            accepted = jsonschema.Draft202012Validator(policy.kind.schema).is_valid(value)
            assert accepted == policy.kind.fits(value), (name, value)


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        (TOPIC_SHAPE, topic_json(topic_figures(producers=[]))),
        (TOPIC_SHAPE, topic_json(replace(topic_figures(producers=[]), persistent=False))),
        (shape_of(storage_json(example_of(StorageFigures))), storage_json(storage_figures(3))),
    ],
    ids=["stats", "stats of a non-persistent topic", "internalStats"],
)
def test_the_schema_of_figures_names_every_field(shape: dict[str, object], shown: dict[str, object]) -> None:
    jsonschema.validate(shown, shape)
    properties = shape["properties"]
    assert isinstance(properties, dict)
    assert {*shown} - {*properties} == set()
