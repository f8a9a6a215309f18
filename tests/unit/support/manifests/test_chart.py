"""The chart in `k8s/chart`: Helm renders what Kustomize does, and refuses wrong values. Others go where they belong."""

import copy
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from magnetar.protocol.names import VERSION
from support.manifests.helm import CHART, HelmError, find_tool, options, run_helm, template
from support.manifests.kustomize import FILE, Manifest, containers, render
from tools.chart_schema import SCHEMA, chart_schema

K8S = CHART.parent
KEPT = {"helm.sh/resource-policy": "keep"}
VALUES = {"small": ("values-small.yaml",), "production": ("values-production.yaml",)}
IMAGE = ("image.repository=magnetar", "image.tag=latest")
"""The image of the Kustomize jobs."""
NO_HELM = "Helm is neither in build/kubernetes (`make helm`) nor on the path"

needs_helm = pytest.mark.skipif(find_tool("helm") is None, reason=NO_HELM)


def by_name(objects: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


def expected_of(directory: Path) -> dict[tuple[str, str], Manifest]:
    """What Kustomize renders, with the one thing that the chart adds: `helm uninstall` leaves the volumes."""
    found = by_name(copy.deepcopy(render(directory)))
    for (kind, _), one in found.items():
        if kind == "PersistentVolumeClaim":
            one["metadata"]["annotations"] = KEPT
    return found


def chart(*given: str, file: str | Path | None = None, namespace: str = "magnetar") -> dict[tuple[str, str], Manifest]:
    return by_name(template([file] if file else [], given, namespace))


def cluster_of(objects: dict[tuple[str, str], Manifest]) -> Manifest:
    return objects["RayCluster", "magnetar"]["spec"]


def groups_of(objects: dict[tuple[str, str], Manifest]) -> dict[str, Manifest]:
    spec = cluster_of(objects)
    return {"head": spec["headGroupSpec"]} | {one["groupName"]: one for one in spec["workerGroupSpecs"]}


def container_of(group: Manifest) -> Manifest:
    return group["template"]["spec"]["containers"][0]


@pytest.mark.promise("29.3")
@needs_helm
@pytest.mark.parametrize("overlay", VALUES)
def test_the_chart_renders_the_objects_of_each_overlay(overlay: str) -> None:
    assert by_name(template(VALUES[overlay])) == expected_of(K8S / "overlays" / overlay)


@needs_helm
def test_the_defaults_render_the_objects_of_the_base(tmp_path: Path) -> None:
    overlay = {
        "namespace": "magnetar",
        "resources": [str(K8S / "base")],
        "images": [{"name": "magnetar", "newName": "magnetar", "newTag": "latest"}],
    }
    (tmp_path / FILE).write_text(yaml.safe_dump(overlay))
    assert chart() == expected_of(tmp_path)


@needs_helm
@pytest.mark.parametrize(
    ("job", "directory", "files"),
    [
        ("start", "start", VALUES["small"]),
        ("start", "start-postgresql", VALUES["production"]),
        ("benchmark", "benchmark", VALUES["small"]),
        ("demo", "demo", VALUES["small"]),
    ],
)
def test_a_job_is_rendered_when_it_is_switched_on(job: str, directory: str, files: tuple[str, ...]) -> None:
    without = by_name(template(files, IMAGE))
    found = by_name(template(files, (*IMAGE, f"jobs.{job}=true")))
    assert {name: one for name, one in found.items() if name not in without} == by_name(
        render(K8S / "jobs" / directory)
    )
    assert {name: found[name] for name in without} == without


def test_every_job_of_the_manifests_can_be_switched_on() -> None:
    there = {path.name for path in (K8S / "jobs").iterdir()} - {"start-postgresql"}
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())["jobs"]) == there


@needs_helm
def test_a_packed_chart_has_all_files_and_renders_the_same(tmp_path: Path) -> None:
    run_helm("package", str(CHART), "--destination", str(tmp_path))
    (packed,) = tmp_path.iterdir()
    assert by_name(template(VALUES["small"], chart=packed)) == chart(file="values-small.yaml")
    with tarfile.open(packed) as archive:
        assert not [one for one in archive.getmembers() if one.issym() or one.name.endswith(FILE)]


@needs_helm
def test_a_chart_whose_links_lead_nowhere_says_so(tmp_path: Path) -> None:
    copied = tmp_path / "chart"
    shutil.copytree(CHART, copied, ignore=shutil.ignore_patterns("base", "jobs"))
    with pytest.raises(HelmError, match=r"the chart has no base/\w+.yaml: get the whole repository"):
        template(chart=copied)


@needs_helm
@pytest.mark.parametrize("files", [(), *VALUES.values()], ids=["defaults", *VALUES])
def test_helm_lint_finds_nothing(files: tuple[str, ...]) -> None:
    jobs = [f"jobs.{name}=true" for name in ("start", "benchmark", "demo")]
    assert "0 chart(s) failed" in run_helm("lint", "--strict", str(CHART), *options(files, jobs))


OTHERS = (
    "image.repository=host.example:5000/team/magnetar",
    "image.tag=v2",
    "image.pullPolicy=Always",
    "storageClass=fast",
    "head.storage=20Gi",
    "head.resources.limits.memory=5Gi",
    "brokers.count=4",
    "brokers.pods=5",
    "brokers.maxPods=6",
    "brokers.numCpus=0",
    "brokers.resources.requests.cpu=3500m",
    "bookies.numbers={1,3,4,5}",
    "bookies.storage=2Ti",
    "bookies.resources.limits.cpu=null",
    "postgresql.url=postgresql://user@database.example:6543/other",
    "postgresql.secret.name=database",
    "postgresql.secret.key=word",
    "redis.address=rediss://redis.example:6380",
    "redis.secret.name=cache",
    "settings.managedLedgerMaxEntriesPerLedger=20000000",
    "settings.bindAddresses=forwarded:pulsar://10.0.0.1:6600",
    "jobs.start=true",
    "jobs.demo=true",
)


@pytest.fixture(scope="module")
def others() -> dict[tuple[str, str], Manifest]:
    """The objects with other values than the defaults, in another namespace."""
    if find_tool("helm") is None:
        pytest.skip(NO_HELM)
    return chart(*OTHERS, namespace="elsewhere")


def test_objects_of_other_values_fit_their_types(others: dict[tuple[str, str], Manifest]) -> None:
    pytest.importorskip("kubernetes", reason="Kubernetes' types come from its Python client")
    from support.manifests.types import check

    assert {name: check(one) for name, one in others.items() if check(one)} == {}


def test_the_image_is_that_of_every_container(others: dict[tuple[str, str], Manifest]) -> None:
    found = [one for manifest in others.values() for one in containers(manifest)]
    assert len(found) == 6 + 2
    assert {(one["image"], one["imagePullPolicy"]) for one in found} == {
        ("host.example:5000/team/magnetar:v2", "Always")
    }


def test_the_namespace_is_that_of_every_object_and_of_every_address(others: dict[tuple[str, str], Manifest]) -> None:
    assert {one["metadata"]["namespace"] for one in others.values()} == {"elsewhere"}
    settings = others["ConfigMap", "magnetar-settings"]["data"]["settings.properties"]
    assert "pulsar+proxy://magnetar.elsewhere.svc:6650\n" in settings
    assert "=magnetar-admin,magnetar-admin.elsewhere,magnetar-admin.elsewhere.svc," in settings
    assert not re.search(r"\.magnetar\b", settings)


def test_settings_are_added_and_take_the_place_of_others(others: dict[tuple[str, str], Manifest]) -> None:
    lines = others["ConfigMap", "magnetar-settings"]["data"]["settings.properties"].splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert len(found) == len(lines) == 4
    assert found["managedLedgerMaxEntriesPerLedger"] == "20000000"
    assert found["bindAddresses"] == "forwarded:pulsar://10.0.0.1:6600"


@needs_helm
def test_settings_of_a_file_of_values_are_written_as_they_stand(tmp_path: Path) -> None:
    given = {
        "managedLedgerMaxEntriesPerLedger": 20000000,
        "diskUsageThreshold": 0.85,
        "brokerDeduplicationEnabled": True,
        "bindAddresses": "a=b, c",
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"settings": given}))
    text = chart(file=tmp_path / "values.yaml")["ConfigMap", "magnetar-settings"]["data"]["settings.properties"]
    lines = text.splitlines()
    assert {
        "managedLedgerMaxEntriesPerLedger=20000000",
        "diskUsageThreshold=0.85",
        "brokerDeduplicationEnabled=true",
        "bindAddresses=a=b, c",
    } <= set(lines)


def test_each_bookie_has_a_group_a_volume_and_a_place_in_the_budget(others: dict[tuple[str, str], Manifest]) -> None:
    bookies = ["bookie-1", "bookie-3", "bookie-4", "bookie-5"]
    groups = groups_of(others)
    assert list(groups) == ["head", "brokers", *bookies]
    for name in bookies:
        assert str(groups[name]).replace(name, "bookie-1") == str(groups["bookie-1"])
        assert groups[name]["labels"]["magnetar.io/bookies"] == name
        volume = groups[name]["template"]["spec"]["volumes"][0]
        assert volume == {"name": "data", "persistentVolumeClaim": {"claimName": f"magnetar-{name}"}}
        assert container_of(groups[name])["resources"] == {
            "requests": {"cpu": "1", "memory": "4Gi"},
            "limits": {"memory": "4Gi"},
        }
    sizes = {
        name: (one["spec"]["resources"]["requests"]["storage"], one["spec"]["storageClassName"])
        for (kind, name), one in others.items()
        if kind == "PersistentVolumeClaim"
    }
    assert sizes == {"magnetar-head": ("20Gi", "fast")} | {f"magnetar-{name}": ("2Ti", "fast") for name in bookies}
    assert others["PodDisruptionBudget", "magnetar-bookies"]["spec"]["minAvailable"] == 3


def test_brokers_have_pods_and_ports(others: dict[tuple[str, str], Manifest]) -> None:
    group = groups_of(others)["brokers"]
    assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [5, 5, 6]
    assert group["rayStartParams"]["num-cpus"] == "0"
    assert container_of(group)["resources"]["requests"] == {"cpu": "3500m", "memory": "4Gi"}
    names = [f"broker-{number}" for number in range(1, 5)]
    ports = {one["name"]: one["containerPort"] for one in container_of(group)["ports"]}
    assert ports == {"metrics": 8090, "forwarding": 6600} | {name: 6700 + place for place, name in enumerate(names)}
    service = others["Service", "magnetar-brokers"]["spec"]["ports"]
    assert service == [{"name": name, "port": 6700 + place, "targetPort": name} for place, name in enumerate(names)]
    assert container_of(groups_of(others)["head"])["resources"]["limits"] == {"cpu": "2", "memory": "5Gi"}


def test_secrets_are_referenced_by_their_names(others: dict[tuple[str, str], Manifest]) -> None:
    password = {"name": "PGPASSWORD", "valueFrom": {"secretKeyRef": {"name": "database", "key": "word"}}}
    for name, group in groups_of(others).items():
        assert [one for one in container_of(group)["env"] if one["name"] == "PGPASSWORD"] == [password], name
    assert cluster_of(others)["gcsFaultToleranceOptions"] == {
        "redisAddress": "rediss://redis.example:6380",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "cache", "key": "password"}}},
    }


def test_the_start_job_gives_what_differs_from_the_defaults(others: dict[tuple[str, str], Manifest]) -> None:
    command = others["RayJob", "magnetar-start"]["spec"]["entrypoint"]
    assert command == (
        "magnetar start --detach --host 0.0.0.0 --insecure --port 6700 --config /etc/magnetar/settings.properties"
        " --metadata postgresql://user@database.example:6543/other --brokers 4 --bookies 4"
    )


PLACES = """
image: {pullSecrets: [registry]}
head: &place
  nodeSelector: {disk: fast}
  tolerations: [{key: queue, operator: Equal, value: messages, effect: NoSchedule}]
  annotations: {team: data}
  priorityClassName: high
brokers: *place
bookies: *place
autoscaler: {enabled: true}
service: {type: LoadBalancer, annotations: {cloud: internal}, loadBalancerSourceRanges: [10.0.0.0/8]}
ingress:
  enabled: true
  className: nginx
  annotations: {one: two}
  host: magnetar.example.com
  tlsSecret: admin-tls
  from: [{namespaceSelector: {matchLabels: {name: ingress}}}]
metrics: {from: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
jobs: {start: true}
"""
"""What charts of Pulsar and others let one choose."""


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Manifest]:
    """The objects with every knob of places and access."""
    if find_tool("helm") is None:
        pytest.skip(NO_HELM)
    file = tmp_path_factory.mktemp("values") / "values.yaml"
    file.write_text(PLACES)
    return chart(file=file)


def test_objects_with_places_and_access_fit_their_types(placed: dict[tuple[str, str], Manifest]) -> None:
    pytest.importorskip("kubernetes", reason="Kubernetes' types come from its Python client")
    from support.manifests.types import check

    assert {name: check(one) for name, one in placed.items() if check(one)} == {}


def test_pods_run_where_the_values_say(placed: dict[tuple[str, str], Manifest]) -> None:
    for name, group in groups_of(placed).items():
        spec = group["template"]["spec"]
        assert spec["nodeSelector"] == {"disk": "fast"}, name
        assert spec["tolerations"] == [
            {"key": "queue", "operator": "Equal", "value": "messages", "effect": "NoSchedule"}
        ]
        assert (spec["priorityClassName"], spec["imagePullSecrets"]) == ("high", [{"name": "registry"}])
        assert group["template"]["metadata"]["annotations"] == {"team": "data"}
    job = placed["RayJob", "magnetar-start"]["spec"]["submitterPodTemplate"]["spec"]
    assert job["imagePullSecrets"] == [{"name": "registry"}]


def test_clients_and_administrators_come_in_where_the_values_say(placed: dict[tuple[str, str], Manifest]) -> None:
    service = placed["Service", "magnetar"]
    assert service["metadata"]["annotations"] == {"cloud": "internal"}
    assert (service["spec"]["type"], service["spec"]["loadBalancerSourceRanges"]) == ("LoadBalancer", ["10.0.0.0/8"])
    ingress = placed["Ingress", "magnetar-admin"]
    assert ingress["metadata"]["annotations"] == {"one": "two"}
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": ["magnetar.example.com"], "secretName": "admin-tls"}]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["backend"]["service"]["name"]) == ("magnetar.example.com", "magnetar-admin")
    settings = placed["ConfigMap", "magnetar-settings"]["data"]["settings.properties"]
    assert re.search(r"^webServiceAllowedHosts=.*,magnetar\.example\.com$", settings, re.MULTILINE)
    rules = {
        name: placed["NetworkPolicy", f"magnetar-{name}"]["spec"]["ingress"][0]["from"] for name in ("admin", "metrics")
    }
    monitoring = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    assert rules["admin"][1:] == [monitoring, {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
    assert rules["metrics"] == [monitoring]


EQUAL = r"(are equal|must be unique)"
UNKNOWN = r"[Aa]dditional propert\w+ '?{}'? (is )?not allowed"
TYPE = r"(want|Expected:) {}"
LEAST = r"(want|greater than or equal to|at least) 1"
PATTERN = r"not match pattern"


@needs_helm
@pytest.mark.parametrize(
    ("given", "name", "wrong"),
    [
        ("bookies.numbers=3", "bookies.numbers", TYPE.format("array")),
        ("bookies.numbers={1,1}", "bookies.numbers", EQUAL),
        ("bookies.numbers={0}", "bookies.numbers.0", LEAST),
        ("bookies.count=3", "bookies", UNKNOWN.format("count")),
        ("bookies.storage=100", "bookies.storage", TYPE.format("string")),
        ("head.storage=10GB", "head.storage", PATTERN),
        ("brokers.count=two", "brokers.count", TYPE.format("integer")),
        ("brokers.pods=0", "brokers.pods", LEAST),
        ("brokers.resources.limits.disk=1Gi", "brokers.resources.limits", UNKNOWN.format("disk")),
        ("image.tag=5", "image.tag", TYPE.format("string")),
        ("image.pullPolicy=Sometimes", "image.pullPolicy", "must be one of"),
        ("storageClass=Fast Disks", "storageClass", PATTERN),
        ("postgresql.url=postgresql://user:word@host/db", "postgresql.url", PATTERN),
        ("postgresql.password=word", "postgresql", UNKNOWN.format("password")),
        ("redis.address=redis", "redis.address", PATTERN),
        ("jobs.start=yes", "jobs.start", TYPE.format("boolean")),
        ("settings.two\\.words=1", "settings", UNKNOWN.format("two.words")),
        ("settings.fooBar=1", "settings", UNKNOWN.format("fooBar")),
        ("settings.brokerDeduplicationEnabled=2", "settings.brokerDeduplicationEnabled", TYPE.format("boolean")),
        ("service.type=Public", "service.type", "must be one of"),
        ("head.tolerations[0].effect=Never", "head.tolerations.0.effect", "must be one of"),
        ("ingress.enabled=true", "ingress.host", "is empty: name the host"),
        ("autoscaler.enabled=false", "brokers.maxPods", "is 10, not brokers.pods, 2: without autoscaler.enabled"),
        ("replicas=3", "", UNKNOWN.format("replicas")),
        ("brokers.maxPods=1", "brokers.maxPods", "is 1, less than brokers.pods, 2"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(given: str, name: str, wrong: str) -> None:
    """Helm 4 says /bookies/numbers, and Helm 3 says bookies.numbers."""
    with pytest.raises(HelmError, match=rf"\b{name}\b.*{wrong}"):
        template(given=[given])


@needs_helm
def test_a_cluster_without_bookies_is_refused(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"bookies": {"numbers": []}}))
    with pytest.raises(HelmError, match=rf"\bbookies.numbers\b.*{LEAST}"):
        chart(file=tmp_path / "values.yaml")


@needs_helm
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], ["upgrade release CHART --reuse-values --set jobs.start=true"]),
        (["jobs.start=true"], ["rayjob/magnetar-start", "pulsar://magnetar.elsewhere.svc:6650"]),
        (["postgresql.url=postgresql://one@two/three"], ["The Secret magnetar-postgresql must have the password"]),
        (["redis.address=redis://one"], ["The Secret magnetar-redis must have the password"]),
    ],
)
def test_the_notes_say_what_to_do_next(given: list[str], words: list[str]) -> None:
    if run_helm("version", "--short").startswith("v3"):
        pytest.skip("Helm 3 asks a Kubernetes before it prints the notes")
    text = run_helm(
        "install", "release", str(CHART), "--namespace", "elsewhere", "--dry-run=client", *options(given=given)
    )
    notes = text.partition("NOTES:")[2]
    assert "namespace elsewhere" in notes
    assert [word for word in words if word not in notes] == []


def test_every_value_has_a_comment_above_it() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r" *\w+:", line)]
    inner = [number for number in keys if lines[number].lstrip().startswith(("requests:", "limits:"))]
    assert len(keys) > 30
    assert [lines[number] for number in keys if number not in inner and "# " not in lines[number - 1]] == []


def test_the_schema_has_every_value_and_takes_the_defaults() -> None:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.Draft7Validator(schema).validate(defaults)
    assert set(schema["properties"]) - {"global"} == set(defaults)
    for name, one in defaults.items():
        if isinstance(one, dict) and name != "settings":
            assert set(schema["properties"][name]["properties"]) == set(one), name


def test_the_schema_has_the_settings_as_they_are_declared() -> None:
    assert SCHEMA.read_text() == chart_schema(), "run `make reference`"


def test_the_chart_has_the_version_of_magnetar() -> None:
    chart_file = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart_file["version"], chart_file["appVersion"]) == (VERSION, VERSION)
