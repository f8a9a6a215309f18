"""Render a chart with Helm. `make helm` puts Helm and kubectl into `build/kubernetes`; elsewhere PATH may have them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from .kustomize import Manifest

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "k8s" / "chart"
TIMEOUT_S = 60


class HelmError(RuntimeError):
    """Helm refused; the message is what it printed."""


def find_tool(name: str) -> str | None:
    """The path of a tool of Kubernetes, or None."""
    ours = ROOT / "build" / "kubernetes" / name
    return str(ours) if ours.exists() else shutil.which(name)


def run_helm(*arguments: str) -> str:
    """What Helm prints. It reads no configuration, and no Kubernetes is there for it. Raises HelmError."""
    helm = find_tool("helm")
    assert helm is not None
    with tempfile.TemporaryDirectory() as home:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        ran = subprocess.run(
            [helm, *arguments],
            env={**inherited, "HOME": home},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if ran.returncode != 0:
        raise HelmError(ran.stderr)
    return ran.stdout


def options(files: Sequence[str | Path] = (), given: Sequence[str] = ()) -> list[str]:
    """Values files, by name below the chart or by path, and single values."""
    found = [word for file in files for word in ("--values", str(CHART / file))]
    return found + [word for value in given for word in ("--set", value)]


def template(
    files: Sequence[str | Path] = (),
    given: Sequence[str] = (),
    namespace: str = "magnetar",
    chart: Path = CHART,
) -> list[Manifest]:
    """The objects of the chart with these values. Raises HelmError."""
    text = run_helm("template", "release", str(chart), "--namespace", namespace, *options(files, given))
    return [one for one in yaml.safe_load_all(text) if one is not None]
