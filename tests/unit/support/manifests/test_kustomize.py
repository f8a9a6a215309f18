"""The renderer of manifests does what kustomize does, and refuses what it does not know."""

from pathlib import Path

import pytest
import yaml

from support.manifests.kustomize import PatchError, apply_patch, render

OBJECT = {"kind": "Pod", "metadata": {"name": "one"}, "spec": {"containers": [{"image": "plain"}], "a/b": 1}}


def write(directory: Path, **files: object) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return directory


def test_an_overlay_gets_the_objects_of_its_base_patched_with_images_and_a_namespace(tmp_path: Path) -> None:
    write(tmp_path / "base", kustomization={"resources": ["objects.yaml"]}, objects=OBJECT)
    overlay = {
        "namespace": "here",
        "resources": ["../base"],
        "images": [{"name": "plain", "newName": "host/plain", "newTag": "2"}],
        "patches": [{"path": "patch.yaml", "target": {"kind": "Pod", "name": "o.*"}}],
    }
    patch = [{"op": "add", "path": "/spec/containers/-", "value": {"image": "other"}}]
    (found,) = render(write(tmp_path / "overlay", kustomization=overlay, patch=patch))
    assert found["metadata"] == {"name": "one", "namespace": "here"}
    assert found["spec"]["containers"] == [{"image": "host/plain:2"}, {"image": "other"}]


@pytest.mark.parametrize(
    ("operation", "spec"),
    [
        ({"op": "add", "path": "/spec/list/0", "value": 0}, {"list": [0, 1, 2], "a/b": 1}),
        ({"op": "add", "path": "/spec/new", "value": 0}, {"list": [1, 2], "a/b": 1, "new": 0}),
        ({"op": "replace", "path": "/spec/list/1", "value": 0}, {"list": [1, 0], "a/b": 1}),
        ({"op": "remove", "path": "/spec/a~1b"}, {"list": [1, 2]}),
        ({"op": "test", "path": "/spec/list/1", "value": 2}, {"list": [1, 2], "a/b": 1}),
    ],
)
def test_a_patch_changes_one_place(operation: dict[str, object], spec: object) -> None:
    manifest = {"spec": {"list": [1, 2], "a/b": 1}}
    apply_patch(manifest, [operation])
    assert manifest == {"spec": spec}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/spec/none", "value": 0},
        {"op": "remove", "path": "/spec/list/2"},
        {"op": "add", "path": "/spec/list/3", "value": 0},
        {"op": "add", "path": "/none/new", "value": 0},
        {"op": "test", "path": "/spec/list/1", "value": 3},
        {"op": "move", "path": "/spec/list/1", "from": "/spec/list/0"},
    ],
)
def test_a_patch_that_does_not_fit_is_refused(operation: dict[str, object]) -> None:
    with pytest.raises(PatchError, match="does not fit"):
        apply_patch({"spec": {"list": [1, 2]}}, [operation])


def test_what_the_renderer_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="namePrefix"):
        render(write(tmp_path / "a", kustomization={"resources": [], "namePrefix": "x-"}))
    patches = [{"path": "patch.yaml", "target": {"kind": "Service"}}]
    with pytest.raises(PatchError, match="no target"):
        render(write(tmp_path / "b", kustomization={"resources": ["o.yaml"], "patches": patches}, o=OBJECT, patch=[]))
