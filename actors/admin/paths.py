"""Finds the route of a request, and decodes the parameters of its path.

Parts of a path are told apart before any of them is decoded, so that `%2F` and braces belong to a name. How a parameter
is decoded is said in `protocol.path_encoding`. A slash at the end of a path has no meaning, as in Pulsar.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from aiohttp import web
from aiohttp.web_urldispatcher import MatchInfoError, UrlMappingMatchInfo

from ...protocol.path_encoding import encoding_of
from .routes import Route

_PARAMETER = re.compile(r"\{(\w+)(?::([^}]+))?\}")


class _PathPart:
    """A part of a declared path: a word, or a parameter, which may be one of some words."""

    def __init__(self, text: str) -> None:
        found = _PARAMETER.fullmatch(text)
        self.parameter = found[1] if found else ""
        self._words = frozenset((found[2] or "").split("|") if found else [text])
        self._is_free = found is not None and found[2] is None
        self.encoding = encoding_of(self.parameter)

    def takes(self, sent: str) -> bool:
        """Whether a part of a request's path, as it was sent, can be this one."""
        return bool(sent) if self._is_free else sent in self._words or unquote(sent) in self._words


class PathResource(web.DynamicResource):
    """The methods of one declared path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._parts = [_PathPart(text) for text in path.removeprefix("/").split("/")]

    async def resolve(self, request: web.Request) -> tuple[UrlMappingMatchInfo | None, set[str]]:
        """The handler and the decoded parameters, or a refusal (400) of one that cannot be decoded."""
        sent = request.rel_url.raw_path.removeprefix("/").removesuffix("/").split("/")
        if len(sent) != len(self._parts):
            return None, set()
        if not all(part.takes(text) for part, text in zip(self._parts, sent, strict=True)):
            return None, set()
        route = self._routes.get(request.method)
        if route is None:
            return None, self._allowed_methods
        try:
            found = {
                part.parameter: part.encoding.decode(text)
                for part, text in zip(self._parts, sent, strict=True)
                if part.parameter
            }
        except ValueError as error:
            return MatchInfoError(web.HTTPBadRequest(text=f"the path cannot be decoded: {error}")), set()
        return UrlMappingMatchInfo(found, route), self._allowed_methods


def add_routes(application: web.Application, routes: Iterable[Route]) -> None:
    """Have an application serve the routes. GET takes HEAD, too."""
    resources: dict[str, PathResource] = {}
    for route in routes:
        resource = resources.get(route.path)
        if resource is None:
            resource = resources[route.path] = PathResource(route.path)
            application.router.register_resource(resource)
        resource.add_route(route.method, route.handler)
        if route.method == "GET":
            resource.add_route("HEAD", route.handler)
