"""Make the schemas in `tests/support/manifests/kuberay` from the CRDs of KubeRay.

    python tests/tools/compact_schemas.py DIRECTORY    # with ray.io_rayclusters.yaml and ray.io_rayjobs.yaml

Types of Kubernetes are named in place of their schemas: those of pod templates alone have a megabyte.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

PLACE = Path(__file__).resolve().parents[1] / "support" / "manifests" / "kuberay"
KEPT = {"type", "enum", "required", "pattern", "minimum", "maximum", "minItems", "maxItems"}
NAMED = {"template": "PodTemplateSpec", "submitterPodTemplate": "PodTemplateSpec", "headService": "Service"}
NOT_LOOKED_INTO = {"env", "envFrom", "volumeMounts", "securityContext", "valueFrom", "rayClusterSpec"}


def compact(schema: dict[str, Any], name: str = "") -> dict[str, Any]:
    """The same schema with types only."""
    if name in NAMED:
        return {"type": "object", "x-type": NAMED[name]}
    found = {key: value for key, value in schema.items() if key in KEPT}
    if name in NOT_LOOKED_INTO:
        return found
    if "properties" in schema:
        found["properties"] = {one: compact(inner, one) for one, inner in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = compact(schema[key])
    if "anyOf" in schema:
        found["anyOf"] = [compact(one) for one in schema["anyOf"]]
    return found


def main() -> None:
    directory = Path(sys.argv[1])
    for plural in ("rayclusters", "rayjobs"):
        definition = yaml.safe_load((directory / f"ray.io_{plural}.yaml").read_text())["spec"]
        (version,) = (one for one in definition["versions"] if one["name"] == "v1")
        kind: str = definition["names"]["kind"]
        spec = compact(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
        (PLACE / f"{kind.lower()}.json").write_text(json.dumps({"kind": kind, "spec": spec}) + "\n")


if __name__ == "__main__":
    main()
