"""What TLS costs: the same topic on the same broker through its port for TLS, over its own port.

A message has 100 bytes where the rate is measured, and 1,024 where the time from publishing to receiving is. Runs
alternate, and the figures are medians of the ratios of neighbours.
"""

import tempfile
from pathlib import Path
from typing import Any

import client_rate
from measurement import payload
from non_persistent import through
from rows import Report, median_of_pairs, ratio

import magnetar
from magnetar.cluster.certificates import create
from magnetar.cluster.planning import read_settings
from magnetar.cluster.ports import free_ports
from magnetar.cluster.preparing import StartOptions
from magnetar.cluster.ray_cluster import start_on_ray

TOPIC = "bench-tls"
RUNS = 5
RUN_S = 2.0
RATE_SHARE_MIN = 0.7
LATENCY_FACTOR_MAX = 1.5
WAYS = ("pulsar.send_async", "magnetar.send_async", "magnetar.send_many")


def run(directory: Path, report: Report) -> None:
    """The rows: rate of publishing in batches by each way, and the time of one message."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="tls-") as scratch:
        made = create(Path(scratch) / "certificates", ["127.0.0.1"], "bench", 1)
        (port,) = free_ports("127.0.0.1", 1)
        settings = {
            "brokerServicePortTls": str(port),
            "tlsCertificateFilePath": str(made.server.certificate),
            "tlsKeyFilePath": str(made.server.key),
        }
        options = StartOptions(read_settings(None, None, settings), brokers=1, port=0, admin_port=0)
        with start_on_ray(str(directory / "tls"), options, detach=False) as cluster:
            sides = {
                cluster.service_url: {},
                f"pulsar+ssl://127.0.0.1:{port}": {"tls_trust_certs_file_path": str(made.ca.certificate)},
            }
            _measure(sides, report)


def _measure(sides: dict[str, dict[str, Any]], report: Report) -> None:
    """`sides` are the options of a client by its service URL: without TLS, then with it."""
    plain, secure = sides
    for way in WAYS:
        rates: dict[str, list[float]] = {url: [] for url in sides}
        for _ in range(RUNS):
            for url, options in sides.items():
                rates[url].append(client_rate.one_run(url, way, TOPIC, RUN_S, **options)["rate"])
        figure, samples = median_of_pairs(rates[secure], rates[plain])
        note = f"{max(rates[secure]):,.0f}/s over {max(rates[plain]):,.0f}/s"
        name = f"publish rate, TLS ÷ plain, {way}"
        report.rows.append(ratio(name, figure, RATE_SHARE_MIN, better="higher", samples=samples, note=note))
    times: dict[str, list[float]] = {url: [] for url in sides}
    for _ in range(RUNS):
        for url, options in sides.items():
            times[url].append(latency_ms(url, options))
    figure, samples = median_of_pairs(times[secure], times[plain])
    note = f"{min(times[secure]):.2f} ms over {min(times[plain]):.2f} ms"
    name = "publish to receive, TLS ÷ plain"
    report.rows.append(ratio(name, figure, LATENCY_FACTOR_MAX, better="lower", samples=samples, note=note))


def latency_ms(service_url: str, options: dict[str, Any]) -> float:
    """The median from publishing to receiving, in milliseconds."""
    with magnetar.Client(service_url, **options) as client:
        consumer = client.subscribe(TOPIC, "bench")
        producer = client.create_producer(TOPIC, batching_enabled=False)
        latencies, _ = through(consumer, producer, payload(1024))
        consumer.unsubscribe()
        return latencies.quantile_ms(50)
