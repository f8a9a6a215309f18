"""Render a directory as `kustomize build` does, for the few features that `k8s` uses. Everything else is refused.

    resources    files, and directories with a kustomization
    namespace    of every object
    images       newName and newTag of containers, by name
    patches      files with JSON patches (RFC 6902: add, replace, remove, test) for targets by kind and name

The order of the objects is that of `resources`. kustomize sorts them.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, cast

import yaml

FILE = "kustomization.yaml"
KEYS = {"apiVersion", "kind", "namespace", "resources", "images", "patches"}

Manifest = dict[str, Any]


class Target(TypedDict, total=False):
    """Which objects a patch changes; `name` is a regular expression for whole names."""

    kind: str
    name: str


class PatchError(ValueError):
    """A patch does not fit, or a feature is not supported."""


def render(directory: Path) -> list[Manifest]:
    """The objects of a kustomization. Raises PatchError."""
    given: Manifest = yaml.safe_load((directory / FILE).read_text())
    _refuse_others(given, KEYS, directory / FILE)
    found: list[Manifest] = []
    for resource in given.get("resources", []):
        path = directory / resource
        found += render(path) if path.is_dir() else read_objects(path)
    for patch in given.get("patches", []):
        _refuse_others(patch, {"path", "target"}, directory / FILE)
        _refuse_others(patch["target"], {"kind", "name"}, directory / FILE)
        chosen = [one for one in found if _is_target(one, patch["target"])]
        if not chosen:
            raise PatchError(f"{patch['path']} has no target in {directory}")
        for one in chosen:
            apply_patch(one, yaml.safe_load((directory / patch["path"]).read_text()))
    for image in given.get("images", []):
        _refuse_others(image, {"name", "newName", "newTag"}, directory / FILE)
        for one in found:
            for container in containers(one):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    if "namespace" in given:
        for one in found:
            one["metadata"]["namespace"] = given["namespace"]
    return found


def read_objects(path: Path) -> list[Manifest]:
    """The objects of a file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def containers(value: object) -> Iterator[Manifest]:
    """All containers below a value."""
    if isinstance(value, dict):
        for key, inner in cast("Manifest", value).items():
            if key in ("containers", "initContainers"):
                yield from inner
            else:
                yield from containers(inner)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from containers(inner)


def apply_patch(manifest: Manifest, operations: list[Manifest]) -> None:
    """Change an object by a JSON patch. Raises PatchError."""
    for operation in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        try:
            _apply(manifest, operation, steps)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PatchError(f"{operation['op']} {operation['path']} does not fit: {error!r}") from error


def _apply(manifest: Manifest, operation: Manifest, steps: list[str]) -> None:
    parent: Any = manifest
    for step in steps[:-1]:
        parent = parent[int(step) if isinstance(parent, list) else step]
    last = steps[-1]
    name = operation["op"]
    value = copy.deepcopy(operation.get("value"))
    if name == "add" and isinstance(parent, list):
        place = len(parent) if last == "-" else int(last)
        if place > len(parent):
            raise IndexError(last)
        parent.insert(place, value)
        return
    key: Any = int(last) if isinstance(parent, list) else last
    if name == "add":
        parent[key] = value
        return
    present = parent[key]  # must be there
    if name == "replace":
        parent[key] = value
    elif name == "remove":
        del parent[key]
    elif name == "test":
        if present != value:
            raise ValueError(f"it is {present!r}, not {value!r}")
    else:
        raise ValueError(f"{name} is not supported")


def _is_target(manifest: Manifest, target: Target) -> bool:
    kind_fits = target.get("kind", manifest["kind"]) == manifest["kind"]
    return kind_fits and re.fullmatch(target.get("name", ".*"), manifest["metadata"]["name"]) is not None


def _refuse_others(given: Manifest, known: set[str], where: Path) -> None:
    others = sorted(set(given) - known)
    if others:
        raise PatchError(f"{where} has {', '.join(others)}, which tests cannot render")
