"""The manifests in `k8s`: their parts fit together, and fit Magnetar."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar.actors.processes.survey import (
    ADMIN_LABEL,
    BOOKIES_LABEL,
    BROKERS_LABEL,
    MACHINE_ID_FILE,
    ZONE_LABELS,
    only_bookie,
    takes,
)
from magnetar.cluster.planning import load_settings
from magnetar.runtime.settings.listeners import parse_bind_addresses, parse_listeners
from support.manifests.helm import find_tool
from support.manifests.kustomize import Manifest, containers, render

K8S = Path(__file__).resolve().parents[4] / "k8s"
OVERLAYS = ("small", "production")
JOBS = sorted(path.name for path in (K8S / "jobs").iterdir())
DIRECTORIES = [f"overlays/{name}" for name in OVERLAYS] + [f"jobs/{name}" for name in JOBS]
DATA = "/var/lib/magnetar"
CLUSTER_LABEL = "ray.io/cluster"
ZONE_LABEL = "topology.kubernetes.io/zone"
BROKER_PORTS = range(6700, 6800)
"""Of up to a hundred brokers."""
TLS_PORT = 6651
"""Pulsar's, for connections with TLS."""
GUIDE = K8S.parent / "docs" / "guides" / "kuberay.md"
KUBERAY_WITH_AUTH_OPTIONS = (1, 5, 1)
SECRETS = "/etc/magnetar-secrets"


@cache
def rendered(directory: str) -> list[Manifest]:
    return render(K8S / directory)


def of_kind(directory: str, kind: str) -> list[Manifest]:
    return [one for one in rendered(directory) if one["kind"] == kind]


def ray_groups(overlay: str) -> dict[str, Manifest]:
    """The head and the groups of workers, by name."""
    (cluster,) = of_kind(f"overlays/{overlay}", "RayCluster")
    spec = cluster["spec"]
    return {"head": spec["headGroupSpec"]} | {one["groupName"]: one for one in spec["workerGroupSpecs"]}


def pods(overlay: str) -> dict[str, tuple[dict[str, str], Manifest]]:
    """Labels and container of the pods of each group. KubeRay adds the label of the cluster."""
    return {
        name: (
            {**group["template"]["metadata"]["labels"], CLUSTER_LABEL: "magnetar"},
            group["template"]["spec"]["containers"][0],
        )
        for name, group in ray_groups(overlay).items()
    }


def selected(overlay: str, labels: dict[str, str]) -> set[str]:
    return {name for name, (found, _) in pods(overlay).items() if labels.items() <= found.items()}


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_kustomize_renders_the_same(directory: str) -> None:
    kustomize, kubectl = shutil.which("kustomize"), find_tool("kubectl")
    if kubectl is not None:
        command = [kubectl, "kustomize"]
    elif kustomize is not None:
        command = [kustomize, "build"]
    else:
        pytest.skip("kubectl is not in build/kubernetes (`make helm`), and neither it nor kustomize is on the path")
    built = subprocess.run([*command, str(K8S / directory)], capture_output=True, text=True, check=True)

    def by_name(objects: list[Manifest]) -> list[Manifest]:
        return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))

    assert by_name(list(yaml.safe_load_all(built.stdout))) == by_name(rendered(directory))


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_containers_are_confined_and_of_our_image(directory: str) -> None:
    (image,) = {one["image"] for manifest in rendered(directory) for one in containers(manifest)}
    assert re.fullmatch(r"[a-z./]*magnetar:[\w.]+", image)
    for manifest in rendered(directory):
        for container in containers(manifest):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


@pytest.mark.parametrize("directory", [one for one in DIRECTORIES if one != "overlays/production"])
def test_an_image_that_is_in_no_registry_is_not_pulled(directory: str) -> None:
    """Kubernetes always pulls an image with the tag `latest` otherwise."""
    found = [one for manifest in rendered(directory) for one in containers(manifest)]
    assert {(one["image"], one.get("imagePullPolicy")) for one in found} == {("magnetar:latest", "IfNotPresent")}


@pytest.mark.promise("29.11")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_group_takes_only_what_belongs_there(overlay: str) -> None:
    groups = ray_groups(overlay)
    expected = {"head": (False, False, True), "brokers": (False, True, False)}
    for name, group in groups.items():
        found = tuple(takes(group["labels"], label) for label in (BOOKIES_LABEL, BROKERS_LABEL, ADMIN_LABEL))
        assert found == expected.get(name, (True, False, False)), name
        assert only_bookie(group["labels"]) == (name if name.startswith("bookie-") else "")
        assert name == "brokers" or group["rayStartParams"]["num-cpus"] == "0", "no tasks beside the disk, or Ray's GCS"
        assert group["rayStartParams"]["metrics-export-port"] != "8080", "the admin's port"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_bookie_has_a_group_of_one_pod_and_a_volume_of_its_own(overlay: str) -> None:
    groups = ray_groups(overlay)
    bookies = [name for name in groups if name not in ("head", "brokers")]
    assert bookies == [f"bookie-{number + 1}" for number in range(len(bookies))] and len(bookies) == 3
    claims = {"head": "magnetar-head"} | {name: f"magnetar-{name}" for name in bookies}
    for name, claim in claims.items():
        spec = groups[name]["template"]["spec"]
        assert spec["volumes"][0] == {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    assert {one["metadata"]["name"] for one in of_kind(f"overlays/{overlay}", "PersistentVolumeClaim")} == set(
        claims.values()
    )
    for name in bookies:
        assert [groups[name][key] for key in ("replicas", "minReplicas", "maxReplicas")] == [1, 1, 1]
    brokers = groups["brokers"]
    assert brokers["minReplicas"] == brokers["replicas"]
    (cluster,) = of_kind(f"overlays/{overlay}", "RayCluster")
    # One Kubernetes node has no room for a pod more, and the start job waits for all pods that are wanted.
    assert ("autoscalerOptions" in cluster["spec"], "enableInTreeAutoscaling" in cluster["spec"]) == (
        (overlay == "production",) * 2
    )
    assert (brokers["maxReplicas"] > brokers["replicas"]) == (overlay == "production")
    for name, (_, container) in pods(overlay).items():
        assert {"name": "data", "mountPath": DATA} in container["volumeMounts"], name
        assert {"name": "MAGNETAR_DATA_DIR", "value": DATA} in container["env"], name


def without_names(group: Manifest, name: str) -> str:
    return str(group).replace(name, "NAME")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_groups_of_bookies_differ_in_their_names_only(overlay: str) -> None:
    groups = ray_groups(overlay)
    assert len({without_names(group, name) for name, group in groups.items() if name.startswith("bookie-")}) == 1


@pytest.mark.promise("29.3")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_lead_to_ports_of_the_pods_that_they_select(overlay: str) -> None:
    expected = {"magnetar": "brokers", "magnetar-brokers": "brokers", "magnetar-admin": "head"}
    found: dict[int, str] = {}
    for service in of_kind(f"overlays/{overlay}", "Service"):
        (group,) = selected(overlay, service["spec"]["selector"])
        assert group == expected[service["metadata"]["name"]]
        _, container = pods(overlay)[group]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for port in service["spec"]["ports"]:
            found[ports[port["targetPort"]]] = f"{service['metadata']['name']}:{port['port']}"
    assert found == {
        6600: "magnetar:6650",
        6700: "magnetar-brokers:6700",
        6701: "magnetar-brokers:6701",
        8080: "magnetar-admin:8080",
    }
    for job in ("start", "start-postgresql"):
        assert f" --port {BROKER_PORTS.start} " in entrypoint(job), "the port of broker-1"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pulsars_port_for_tls_is_free(overlay: str) -> None:
    ports = {port["port"] for one in of_kind(f"overlays/{overlay}", "Service") for port in one["spec"]["ports"]}
    assert TLS_PORT not in ports | set(BROKER_PORTS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_admin_and_brokers_have_a_place_for_certificates_and_keys(overlay: str) -> None:
    """The Secrets may be missing: TLS and tokens do not exist yet."""
    for name, group in ray_groups(overlay).items():
        spec = group["template"]["spec"]
        mounts = [one["mountPath"] for one in spec["containers"][0]["volumeMounts"] if one["name"] == "secrets"]
        assert mounts == ([SECRETS] if name in ("head", "brokers") else []), name
        for volume in (one for one in spec["volumes"] if one["name"] == "secrets"):
            found = {one["secret"]["name"]: one["secret"]["optional"] for one in volume["projected"]["sources"]}
            assert found == {"magnetar-tls": True, "magnetar-tokens": True}
            assert volume["projected"]["defaultMode"] == 0o440, "for the group of the pod, and nobody else"
    assert SECRETS in GUIDE.read_text()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ray_gets_the_zone_of_the_kubernetes_node(overlay: str) -> None:
    for name, group in ray_groups(overlay).items():
        if name == "head":
            continue
        spec = group["template"]["spec"]
        (zone,) = [one for one in spec["containers"][0]["env"] if one["name"] == "RAY_NODE_ZONE"]
        assert zone["valueFrom"] == {"fieldRef": {"fieldPath": f"metadata.labels['{ZONE_LABEL}']"}}, name
        (spread,) = spec["topologySpreadConstraints"]
        assert spread["topologyKey"] == ZONE_LABEL and spread["maxSkew"] == 1
        strict = overlay == "production" and name != "brokers"
        assert spread["whenUnsatisfiable"] == ("DoNotSchedule" if strict else "ScheduleAnyway"), name
    assert ZONE_LABEL in ZONE_LABELS, "the label that the guide has users write, where Kubernetes gives none"
    assert f"{ZONE_LABEL}: zone-a" in GUIDE.read_text()


def test_the_guide_asks_for_a_kuberay_that_knows_the_fields() -> None:
    assert ray_clusters_have("authOptions")
    (asked,) = re.findall(r"KubeRay's operator, version ([\d.]+) or later", GUIDE.read_text())
    assert tuple(map(int, asked.split("."))) >= KUBERAY_WITH_AUTH_OPTIONS


def ray_clusters_have(field: str) -> bool:
    return all(field in of_kind(f"overlays/{overlay}", "RayCluster")[0]["spec"] for overlay in OVERLAYS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_guide_says_what_does_not_answer_without_the_head(overlay: str) -> None:
    """The admin may run elsewhere meanwhile, where neither Service nor policy lead."""
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(f"overlays/{overlay}", "Service")}
    assert selected(overlay, services["magnetar-admin"]["selector"]) == {"head"}
    (row,) = [line for line in GUIDE.read_text().splitlines() if line.startswith("| the head, `production`")]
    assert "`magnetar-admin`" in row and "until the head is back" in row


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_settings_are_magnetars_and_fit_the_services(overlay: str, tmp_path: Path) -> None:
    (settings_map,) = of_kind(f"overlays/{overlay}", "ConfigMap")
    ((name, text),) = settings_map["data"].items()
    (tmp_path / name).write_text(text)
    settings = load_settings(config=str(tmp_path / name), environment={})
    listeners = parse_listeners(settings.advertised_listeners.replace("{host}:{port}", "10.0.0.1:6650"))
    assert {one.first.url for one in listeners.values()} == {
        "pulsar://10.0.0.1:6650",
        "pulsar+proxy://magnetar.magnetar.svc:6650",
    }, "service and namespace of the overlay"
    assert [one.address for one in parse_bind_addresses(settings.bind_addresses, listeners)] == [("0.0.0.0", 6600)]
    assert {one["metadata"]["namespace"] for one in rendered(f"overlays/{overlay}")} == {"magnetar"}
    (_, head) = pods(overlay)["head"]
    (mount,) = [one["mountPath"] for one in head["volumeMounts"] if one["name"] == "settings"]
    for job in ("start", "start-postgresql"):
        assert f"--config {mount}/{name}" in entrypoint(job)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_budgets_keep_all_bookies_but_one_and_select_pods(overlay: str) -> None:
    found: dict[frozenset[str], int] = {}
    for budget in of_kind(f"overlays/{overlay}", "PodDisruptionBudget"):
        spec = budget["spec"]
        assert spec.keys() == {"minAvailable", "selector"}, "Kubernetes takes nothing else for pods of an operator"
        found[frozenset(selected(overlay, spec["selector"]["matchLabels"]))] = spec["minAvailable"]
    bookies = frozenset(name for name in ray_groups(overlay) if name.startswith("bookie-"))
    assert found == {bookies: len(bookies) - 1, frozenset({"brokers"}): 1, frozenset({"head"}): 1}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_network_policies_close_every_pod_and_open_the_ports_of_the_services(overlay: str) -> None:
    closed: set[str] = set()
    opened: dict[str, set[int]] = {}
    for policy in of_kind(f"overlays/{overlay}", "NetworkPolicy"):
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress"]
        groups = selected(overlay, spec["podSelector"]["matchLabels"])
        assert groups
        closed |= groups
        for rule in spec["ingress"]:
            assert all(one["podSelector"]["matchLabels"] for one in rule["from"]), "nobody without a label"
            for port in rule.get("ports", []):
                for group in groups:
                    opened.setdefault(group, set()).update(range(port["port"], port.get("endPort", port["port"]) + 1))
    assert closed == set(ray_groups(overlay))
    metrics = 8090
    assert opened == {"brokers": {6600, *BROKER_PORTS, metrics}, "head": {8080, 8265, metrics}} | {
        name: {metrics} for name in closed if name.startswith("bookie-")
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_slow_start_does_not_end_a_raylet(overlay: str) -> None:
    """Five raylets that start at once on two processors take minutes: neither a probe nor Ray ends them before."""
    for name, (_, container) in pods(overlay).items():
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 600, name
        assert "initialDelaySeconds" not in container["livenessProbe"]
        assert {"name": "RAY_agent_register_timeout_ms", "value": "600000"} in container["env"], name


def entrypoint(job: str) -> str:
    (found,) = rendered(f"jobs/{job}")
    return found["spec"]["entrypoint"]


@pytest.mark.parametrize("job", JOBS)
def test_jobs_run_on_the_cluster_with_a_plain_command(job: str) -> None:
    """KubeRay gives the entry point to a shell of the submitter: variables and quotes would not arrive."""
    (found,) = rendered(f"jobs/{job}")
    assert found["spec"]["clusterSelector"] == {CLUSTER_LABEL: "magnetar"}
    words = shlex.split(entrypoint(job))
    assert shlex.join(words) == entrypoint(job)
    assert words[0] in ("magnetar", "python")
    labels = found["spec"]["submitterPodTemplate"]["metadata"]["labels"]
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind("overlays/small", "NetworkPolicy")}
    (rule,) = policies["magnetar-jobs"]["ingress"]
    assert any(one["podSelector"]["matchLabels"].items() <= labels.items() for one in rule["from"])


def secrets(value: Any) -> set[tuple[str, str]]:
    """Names and keys of the Secrets below a value."""
    if isinstance(value, dict):
        own = {(value["secretKeyRef"]["name"], value["secretKeyRef"]["key"])} if "secretKeyRef" in value else set()
        return own.union(*(secrets(inner) for inner in value.values()))
    return set().union(*(secrets(inner) for inner in value)) if isinstance(value, list) else set()


def test_passwords_come_from_secrets_alone() -> None:
    assert secrets(rendered("overlays/small")) == set()
    assert secrets(rendered("overlays/production")) == {
        ("magnetar-postgresql", "password"),
        ("magnetar-redis", "password"),
    }
    for name, (_, container) in pods("production").items():
        passwords = [one for one in container["env"] if one["name"] == "PGPASSWORD"]
        assert len(passwords) == 1 and "value" not in passwords[0], f"the coordinator may run in {name}"
    assert "//magnetar@" in entrypoint("start-postgresql"), "a user without a password"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_rays_own_health_checks(overlay: str) -> None:
    """Pods are ready before Magnetar runs: KubeRay submits the job that starts it only then."""
    for name, (_, container) in pods(overlay).items():
        for probe in ("livenessProbe", "readinessProbe"):
            if (name, probe) == ("brokers", "readinessProbe"):
                continue
            check_of = container[probe]["httpGet"]
            assert check_of["path"] in ("/api/local_raylet_healthz", "/api/gcs_healthz"), name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_broker_pod_is_ready_while_a_broker_listens_for_the_service(overlay: str) -> None:
    """Tests of the nodes run the probe. Here: it asks at the port to which the Service leads."""
    _, container = pods(overlay)["brokers"]
    (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == "forwarding"]
    (script,) = container["readinessProbe"]["exec"]["command"][2:]
    used, unused = script.split("exit; fi")
    assert f"/dev/tcp/127.0.0.1/{port}" in used and f"$MAGNETAR_DATA_DIR/{MACHINE_ID_FILE}" in used
    assert "/dev/tcp/127.0.0.1/52365" in unused and "/api/local_raylet_healthz" in unused


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_that_is_deleted_has_time_to_drain(overlay: str) -> None:
    """SIGTERM drains: no hook runs before, whose time would be missing."""
    for name, group in ray_groups(overlay).items():
        spec = group["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] > 30, f"{name}: how long `ray start --block` drains"
        assert "lifecycle" not in spec["containers"][0], name


@pytest.mark.parametrize(
    ("looked_at", "broker", "agent", "ready"),
    [
        (False, False, None, False),
        (False, False, 503, False),
        (False, False, 200, True),
        (True, False, 200, False),
        (True, True, 503, True),
    ],
)
def test_the_probe_asks_ray_until_magnetar_looked_at_the_pod_then_for_a_broker(
    looked_at: bool, broker: bool, agent: int | None, ready: bool, tmp_path: Path
) -> None:
    (script,) = pods("small")["brokers"][1]["readinessProbe"]["exec"]["command"][2:]
    if looked_at:
        (tmp_path / MACHINE_ID_FILE).touch()
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as listener, health_of_ray(agent) as health:
        closed.bind(("127.0.0.1", 0))
        port = (listener if broker else closed).getsockname()[1]
        script = script.replace("/6600;", f"/{port};").replace("/52365\n", f"/{health or closed.getsockname()[1]}\n")
        environment = {**os.environ, "MAGNETAR_DATA_DIR": str(tmp_path)}
        done = subprocess.run(["bash", "-c", script], env=environment, check=False, timeout=30, capture_output=True)
    assert (done.returncode == 0) == ready, done.stderr


@contextmanager
def health_of_ray(status: int | None) -> Iterator[int]:
    """The port of a server that answers as Ray's agent does to its health check, with this status; 0 without one."""
    if status is None:
        yield 0
        return

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/local_raylet_healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Agent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
