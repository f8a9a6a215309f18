"""`magnetar perf produce`: publish at a rate, or as fast as possible, and measure latencies.

The client is loaded when the command runs: other commands shall start without it.
"""

import random
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...protocol.errors import InvalidConfiguration
from ..terminal.addresses import ListenerName, ServiceUrl, client_options, service_url_of
from ..terminal.failures import clear_errors
from .keys import KeyMode
from .limits import LoadLimits
from .options import (
    Figures,
    PerfDuration,
    PerfEveryS,
    PerfHistogramFile,
    PerfNumber,
    PerfPlotFile,
    PerfTopic,
    PerfTopics,
    PerfWarmUp,
    names_of,
)


class Compression(StrEnum):
    """How batches are compressed."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZLIB = "ZLIB"
    ZSTD = "ZSTD"
    SNAPPY = "SNAPPY"


PerfProduceRate = Annotated[
    float, typer.Option("-r", "--rate", min=0, help="Messages per second of all producers; 0 = as fast as possible.")
]
PerfProduceSize = Annotated[int, typer.Option("-s", "--size", min=0, help="Bytes of a message.")]
PerfProduceProducers = Annotated[int, typer.Option("-n", "--num-producers", min=1, help="Producers on each topic.")]
PerfProduceOutstanding = Annotated[
    int, typer.Option("-o", "--max-outstanding", min=1, help="Messages without a receipt, per producer and partition.")
]
PerfProduceBatchTime = Annotated[
    float, typer.Option("-b", "--batch-time-window", min=0, help="Milliseconds that a batch waits.")
]
PerfProduceBatchMessages = Annotated[
    int, typer.Option("-bm", "--batch-max-messages", min=1, help="Messages of a batch.")
]
PerfProduceBatchBytes = Annotated[int, typer.Option("-bb", "--batch-max-bytes", min=1, help="Bytes of a batch.")]
PerfProduceNoBatches = Annotated[
    bool, typer.Option("-db", "--disable-batching", help="Send each message in an entry of its own.")
]
PerfProduceChunking = Annotated[
    bool, typer.Option("-ch", "--chunking", help="Send messages that are too large in chunks.")
]
PerfProduceCompressed = Annotated[
    Compression, typer.Option("-z", "--compression", case_sensitive=False, help="How batches are compressed.")
]
PerfProducePayloadFile = Annotated[
    Path | None, typer.Option("-f", "--payload-file", help="Send the parts of this file in turn, not random bytes.")
]
PerfProduceDelimiter = Annotated[
    str, typer.Option("-e", "--payload-delimiter", help="What separates the parts of the file.")
]
PerfProduceKeys = Annotated[
    KeyMode | None, typer.Option("-mk", "--message-key-generation-mode", help="Give messages keys of this kind.")
]
PerfProduceEndOnFailure = Annotated[
    bool, typer.Option("--exit-on-failure", help="End with the first message that fails.")
]


def produce(
    context: typer.Context,
    topic: PerfTopic,
    rate: PerfProduceRate = 100.0,
    size: PerfProduceSize = 1024,
    topics: PerfTopics = 1,
    producers: PerfProduceProducers = 1,
    number: PerfNumber = 0,
    duration: PerfDuration = 0.0,
    outstanding: PerfProduceOutstanding = 10_000,
    batch_time_ms: PerfProduceBatchTime = 1.0,
    batch_messages: PerfProduceBatchMessages = 1_000,
    batch_bytes: PerfProduceBatchBytes = 4 << 20,
    no_batches: PerfProduceNoBatches = False,
    chunking: PerfProduceChunking = False,
    compression: PerfProduceCompressed = Compression.NONE,
    payload_file: PerfProducePayloadFile = None,
    delimiter: PerfProduceDelimiter = "\\n",
    keys: PerfProduceKeys = None,
    end_on_failure: PerfProduceEndOnFailure = False,
    every_s: PerfEveryS = 10.0,
    warmup_s: PerfWarmUp = 1.0,
    histogram_file: PerfHistogramFile = None,
    plot_file: PerfPlotFile = None,
    service_url: ServiceUrl = None,
    listener_name: ListenerName = None,
) -> None:
    """Publish messages, and show rates and latencies."""
    with clear_errors():
        import uvloop

        from ...client.core.configuration import CompressionType
        from .publishing import Load, run

        payloads = _parts(payload_file, delimiter) if payload_file is not None else [random.Random(1).randbytes(size)]
        options: dict[str, object] = {
            "batching_enabled": not (no_batches or chunking),
            "chunking_enabled": chunking,
            "batching_max_publish_delay_ms": max(1, round(batch_time_ms)),
            "batching_max_messages": batch_messages,
            "batching_max_allowed_size_in_bytes": batch_bytes,
            "max_pending_messages": outstanding,
            "max_pending_messages_across_partitions": 1 << 30,
            "block_if_queue_full": True,
            "compression_type": CompressionType[compression.value],
        }
        load = Load(rate / (topics * producers), payloads, keys, outstanding, end_on_failure)
        names = [name for name in names_of(topic, topics) for _ in range(producers)]
        with Figures(every_s, warmup_s, histogram_file, plot_file).report("produced") as report:
            url = service_url_of(context, service_url)
            found = client_options(context, listener_name, service_url)
            uvloop.run(run(url, names, options, load, LoadLimits(number, duration), report, found))


def _parts(path: Path, delimiter: str) -> list[bytes]:
    """The parts of a file that are not empty. Raises InvalidConfiguration, OSError."""
    separator = delimiter.encode().decode("unicode_escape").encode()
    parts = [part for part in path.read_bytes().split(separator) if part] if separator else [path.read_bytes()]
    if not any(parts):
        raise InvalidConfiguration(f"{path} holds nothing to send: put payloads into it")
    return parts
