"""The OpenAPI description of the admin, made from the declared routes, and the paths that serve it."""

import inspect
import re
from collections.abc import Iterable, Mapping

from aiohttp import web

from ...protocol.names import VERSION
from ..security.authorization import OPEN
from .requests import json_answer
from .routes import ANYTHING, JSON, PATH_PARAMETERS, TEXT, Parameter, Route, get

MAY_BE_EMPTY = "x-may-be-empty"
"""Says of an answer whether it may have no body; OpenAPI has no word for that."""

PATH = "/admin/v2/openapi.json"

_PARAMETER = re.compile(r"\{(\w+)(?::([^}]+))?\}")
_REFUSAL = {"$ref": "#/components/responses/Refusal"}


class OpenApiRoutes:
    """Serves the description of the routes of the other groups, and of its own."""

    def __init__(self, others: Iterable[Route]) -> None:
        self._document = document([*others, *self.routes()])

    def routes(self) -> list[Route]:
        return [get(OPEN, PATH, self.description, ANYTHING)]

    async def description(self, request: web.Request) -> web.Response:
        """Return the OpenAPI description of the admin."""
        return json_answer(self._document)


def document(routes: Iterable[Route]) -> dict[str, object]:
    """The description as a JSON object."""
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        paths.setdefault(shown_path(route), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Magnetar admin",
            "version": VERSION,
            "description": "Paths, parameters and answers are those of Apache Pulsar's admin API.",
        },
        "paths": paths,
        "components": {
            "responses": {
                "Refusal": {
                    "description": "The request was refused; `reason` says why.",
                    "content": {
                        JSON: {
                            "schema": {"type": "object", "properties": {"reason": TEXT}, "required": ["reason"]},
                        }
                    },
                }
            }
        },
    }


def shown_path(route: Route) -> str:
    """A path as the description names it: parameters without their patterns."""
    return _PARAMETER.sub(r"{\1}", route.path)


def _operation(route: Route) -> Mapping[str, object]:
    text = " ".join((inspect.getdoc(route.handler) or "").split())
    path = shown_path(route)
    operation: dict[str, object] = {
        "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", path.removeprefix("/admin/v2"))]),
        "summary": text,
        "tags": [next(part for part in re.findall(r"\w+", path) if part not in ("admin", "v2"))],
        "parameters": [*_path_parameters(route), *(_shown(one, "query") for one in route.query)],
        "responses": _responses(route),
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.optional_body,
            "content": {JSON: {"schema": route.body}},
        }
    return operation


def _path_parameters(route: Route) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = []
    for name, pattern in _PARAMETER.findall(route.path):
        parameter = PATH_PARAMETERS[name]
        schema = {**parameter.schema, "enum": pattern.split("|")} if pattern else parameter.schema
        found.append(_shown(Parameter(name, schema, parameter.doc), "path"))
    return found


def _shown(parameter: Parameter, place: str) -> Mapping[str, object]:
    return {
        "name": parameter.name,
        "in": place,
        "required": place == "path",
        "description": parameter.doc,
        "schema": parameter.schema,
    }


def _responses(route: Route) -> Mapping[str, object]:
    answers: dict[str, object] = {}
    if route.answer is not None:
        text = "What was asked for." + (" The body is empty if there is no value." if route.may_be_empty else "")
        content = {route.content_type: {"schema": route.answer}}
        answers[str(route.status)] = {"description": text, "content": content, MAY_BE_EMPTY: route.may_be_empty}
    if route.answer is None or route.no_content:
        answers["204"] = {"description": "There is nothing to say." if route.no_content else "It was done."}
    return {**answers, "4XX": _REFUSAL, "503": _REFUSAL, "504": _REFUSAL}
