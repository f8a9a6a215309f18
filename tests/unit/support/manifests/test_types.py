"""The manifests fit the types of Kubernetes and of KubeRay, and the check finds what does not fit."""

from pathlib import Path

import pytest

from support.manifests.kustomize import FILE, render

pytest.importorskip("kubernetes", reason="Kubernetes' types come from its Python client: `.ci/environment` installs it")

from support.manifests.types import check

K8S = Path(__file__).resolve().parents[4] / "k8s"
DIRECTORIES = sorted(str(file.parent.relative_to(K8S)) for file in K8S.rglob(FILE))

CLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "one"},
    "spec": {
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {"spec": {"containers": [{"name": "head", "image": "ray"}]}},
        }
    },
}


def changed(path: str, value: object) -> object:
    """The cluster with another value at this path."""

    def put(inner: dict[str, object], steps: list[str]) -> dict[str, object]:
        first, *rest = steps
        return {**inner, first: put(inner.get(first, {}), rest) if rest else value}

    return put(CLUSTER, path.split("."))


def test_a_cluster_fits() -> None:
    assert check(CLUSTER) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.headGroup", {}),
        ("spec.suspend", "no"),
        ("spec.autoscalerOptions", {"version": "v3"}),
        ("spec.headGroupSpec", {"rayStartParams": {}}),
        ("spec.headGroupSpec.rayStartParams", {"num-cpus": 0}),
        ("spec.headGroupSpec.template.spec", {"containers": [{"name": "head", "images": "ray"}]}),
        ("spec.headGroupSpec.template.spec", {"containers": [{"name": "head", "ports": [{"containerPort": "x"}]}]}),
        ("spec.headGroupSpec.template.metadata", {"labels": {"one": 1}}),
        ("metadata.label", {}),
        ("apiVersion", "ray.io/v2"),
        ("status2", {}),
    ],
)
def test_what_does_not_fit_is_found(path: str, value: object) -> None:
    assert check(changed(path, value)) != []


def test_names_of_python_are_no_names_of_fields() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"cluster_ip": "None"}}
    assert check(service) != []


@pytest.mark.promise("29.3")
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_every_object_of_ours_fits(directory: str) -> None:
    objects = render(K8S / directory)
    assert objects
    assert {one["metadata"]["name"]: check(one) for one in objects if check(one)} == {}
