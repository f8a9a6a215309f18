"""What forwarding costs: a client whose broker forwards it to the owner of a topic, over one that the owner serves.

Both publish and receive on the same topic. Runs alternate, and the figures are medians of the ratios of neighbours.
"""

import client_rate
from admin_http import ask
from measurement import payload
from non_persistent import through
from rows import Report, median_of_pairs, ratio

import magnetar
from magnetar.cluster.handle import Cluster

TOPIC = "bench-forwarded"
RUNS = 5
RUN_S = 2.0
RATE_SHARE_MIN = 0.7
LATENCY_FACTOR_MAX = 1.5
WAY = "magnetar.send_many"


def run(cluster: Cluster, report: Report) -> None:
    """The rows: rate of publishing in batches, and time of one message from publishing to receiving."""
    direct, forwarded = service_urls(cluster)
    rates: dict[str, list[float]] = {direct: [], forwarded: []}
    for _ in range(RUNS):
        for url, found in rates.items():
            found.append(client_rate.one_run(url, WAY, TOPIC, RUN_S)["rate"])
    figure, samples = median_of_pairs(rates[forwarded], rates[direct])
    note = f"{max(rates[forwarded]):,.0f}/s over {max(rates[direct]):,.0f}/s"
    report.rows.append(
        ratio("publish rate, forwarded ÷ direct", figure, RATE_SHARE_MIN, better="higher", samples=samples, note=note)
    )
    times: dict[str, list[float]] = {direct: [], forwarded: []}
    for _ in range(RUNS):
        for url, found in times.items():
            found.append(latency_ms(url))
    figure, samples = median_of_pairs(times[forwarded], times[direct])
    note = f"{min(times[forwarded]):.2f} ms over {min(times[direct]):.2f} ms"
    name = "publish to receive, forwarded ÷ direct"
    report.rows.append(ratio(name, figure, LATENCY_FACTOR_MAX, better="lower", samples=samples, note=note))


def service_urls(cluster: Cluster) -> tuple[str, str]:
    """The owner of the topic, and another broker that forwards to it."""
    with cluster.client() as client:
        client.create_producer(TOPIC)
    owner = ask("GET", f"{cluster.admin_url}/lookup/v2/topic/persistent/public/default/{TOPIC}")["brokerUrl"]
    other = next(url for url in cluster.service_urls if url != owner)
    return owner, other.replace("pulsar://", "pulsar+proxy://")


def latency_ms(service_url: str) -> float:
    """The median from publishing to receiving, in milliseconds."""
    with magnetar.Client(service_url) as client:
        consumer = client.subscribe(TOPIC, "bench")
        producer = client.create_producer(TOPIC, batching_enabled=False)
        latencies, _ = through(consumer, producer, payload(1024))
        consumer.unsubscribe()
        return latencies.quantile_ms(50)
