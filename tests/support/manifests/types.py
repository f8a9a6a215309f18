"""Check objects against the types of Kubernetes (its official Python client) and of KubeRay (`kuberay/*.json`)."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import pydantic
from kubernetes.client import models

from .kustomize import Manifest

KUBERAY = Path(__file__).parent / "kuberay"
VERSIONS = {
    "ConfigMap": "v1",
    "Ingress": "networking.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PersistentVolumeClaim": "v1",
    "PodDisruptionBudget": "policy/v1",
    "RayCluster": "ray.io/v1",
    "RayJob": "ray.io/v1",
    "Service": "v1",
}
"""The kinds that `k8s` has, and the version of each that the types are for."""


def check(manifest: Manifest) -> list[str]:
    """What is wrong with an object, field by field."""
    kind = manifest["kind"]
    if VERSIONS.get(kind) != manifest["apiVersion"]:
        return [f"{kind} of {manifest['apiVersion']} is not known"]
    if manifest["apiVersion"] != "ray.io/v1":
        return check_type(f"V1{kind}", manifest)
    spec = manifest["spec"]
    schema = ray_schema(kind)
    found = [
        f"spec{_path(error)}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(spec)
    ]
    found += check_type("V1ObjectMeta", manifest["metadata"])
    found += [f"unknown: {name}" for name in manifest if name not in ("apiVersion", "kind", "metadata", "spec")]
    for type_name, value in _typed(schema, spec):
        found += check_type(f"V1{type_name}", value)
    return found


def check_type(name: str, value: object) -> list[str]:
    """What is wrong with a value of a type of Kubernetes. Unknown fields are wrong."""
    model: type[pydantic.BaseModel] = getattr(models, name)
    try:
        read = model.model_validate(value, by_alias=True, by_name=False)
    except pydantic.ValidationError as error:
        return [f"{name}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return (
        [] if read.model_dump(mode="json", by_alias=True, exclude_unset=True) == value else [f"{name}: not read whole"]
    )


@functools.cache
def ray_schema(kind: str) -> dict[str, Any]:
    """The schema of the spec of a kind of KubeRay's. Fields that it does not name are refused."""
    schema: dict[str, Any] = json.loads((KUBERAY / f"{kind.lower()}.json").read_text())["spec"]
    return _closed(schema)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in cast("dict[str, object]", schema).items()}
    if isinstance(closed.get("properties"), dict) and "additionalProperties" not in closed and "type" in closed:
        closed["additionalProperties"] = False
    return closed


def _typed(schema: dict[str, Any], value: Any) -> Iterator[tuple[str, Any]]:
    """The values below `value` that have a type of Kubernetes."""
    if "x-type" in schema:
        yield schema["x-type"], value
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _typed(schema.get("properties", {}).get(name, {}), inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _typed(schema.get("items", {}), inner)


def _path(error: jsonschema.ValidationError) -> str:
    return "".join(f"[{part!r}]" for part in error.absolute_path)
