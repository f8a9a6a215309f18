"""Python calls of one synced 100-byte message with three copies and one consumer, by file and function.

Starts the services of a cluster in this process, without Ray: coordinator, one broker, three bookies, admin. A blocking
client publishes one unbatched message at a time, receives it and acknowledges it. All threads count what they call.
`support.checks.call_counts` says what a call is. What is called while nobody publishes is subtracted.

The client sends acknowledgements together, every 100 ms. So a faster machine makes fewer calls per message.

    python bench/calls.py [--directory DIR] [--messages N] [--callers]

`--callers` also names for each function who calls it.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from measurement import payload
from rows import RESULTS

from magnetar.cluster.embedded import start_embedded
from magnetar.cluster.preparing import StartOptions
from support.checks.call_counts import OTHERS, PARTS, CallLog, Line, exchange, of_magnetar

MESSAGE_SIZE = 100
WARM_UP = 200
SETTLE_S = 10.0
"""The journals are filled with zeros by then."""
IDLE_S = 5.0
QUIET = {"localScrubInterval": 0}
"""Without a scrub. It would begin somewhere in the middle."""


def show(lines: list[Line], callers: bool, say: Callable[[str], None] = print) -> None:
    """Print the table and its sums."""
    files = {line.place.partition(":")[0] for line in lines if line.part != OTHERS}
    total = 0.0
    for line in lines:
        total += line.calls
        say(f"{line.calls:7.2f} {total:8.1f}  {line.part:7} {line.place}")
        if callers:
            for caller, made in line.callers.items():
                say(f"{'':18}{made:7.2f}  from {caller}")
    for part in (*PARTS, OTHERS):
        say(f"{part}: {sum(line.calls for line in lines if line.part == part):.1f}")
    say(f"a message makes {of_magnetar(lines):.1f} Python calls in {len(files)} files of Magnetar")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=RESULTS)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--callers", action="store_true")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    log = CallLog()
    with log.watching(), tempfile.TemporaryDirectory(dir=options.directory, prefix="cluster-") as directory:
        cluster = start_embedded(directory, StartOptions(QUIET, brokers=1, bookies=3, port=0, admin_port=0))
        try:
            with cluster.client() as client:
                lines = exchange(
                    client,
                    log,
                    options.messages,
                    warm_up=WARM_UP,
                    settle_s=SETTLE_S,
                    idle_s=IDLE_S,
                    payload=payload(MESSAGE_SIZE),
                )
        finally:
            cluster.stop()
    show(lines, options.callers)


if __name__ == "__main__":
    main()
