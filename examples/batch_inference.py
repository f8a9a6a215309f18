"""Batch inference from topic to topic: Ray Data reads one from the bookies, a model rates its rows, another gets them.

The read ends where the topic ended when it was planned. So producers may go on meanwhile.
"""

import numpy as np
import ray.data
from ray.data.expressions import col

import magnetar

ROWS, TWO = 5_000, ray.data.ActorPoolStrategy(size=2)


class Detector:
    """Finds readings that lie far from what was usual. An actor of Ray Data makes one, and calls it with batches."""

    def __init__(self, usual: np.ndarray) -> None:
        self.mean = usual.mean(axis=0)
        self.precision = np.linalg.inv(np.cov(usual, rowvar=False))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        away = np.column_stack([batch["volts"], batch["amperes"]]) - self.mean
        score = np.sqrt(np.einsum("ij,jk,ik->i", away, self.precision, away))
        return {"meter": batch["meter"], "score": score, "alarm": score > 5.0}


def publish_readings(random: np.random.Generator) -> None:
    readings = random.normal([230.0, 8.0], [2.0, 1.5], size=(ROWS, 2))
    readings[::500, 1] += 40.0
    rows = [{"meter": number, "volts": volts, "amperes": a} for number, (volts, a) in enumerate(readings.tolist())]
    ray.data.from_items(rows).write_datasink(magnetar.data.TopicDatasink("readings", schema="json"))


def main() -> None:
    magnetar.connect()
    random = np.random.default_rng(7)
    publish_readings(random)

    usual = random.normal([230.0, 8.0], [2.0, 1.5], size=(1_000, 2))
    readings = magnetar.data.read_topic("readings", schema="auto", columns=["meter", "volts", "amperes"])
    rated = readings.map_batches(Detector, fn_constructor_args=[usual], compute=TWO, num_cpus=0.5)
    sink = magnetar.data.TopicDatasink("rated-readings", schema="json")
    rated.write_datasink(sink)
    print(sink.written.rows, "readings rated")

    alarms = magnetar.data.read_topic("rated-readings", schema="auto").filter(expr=col("alarm"))
    print("alarms of meters", sorted({row["meter"] for row in alarms.take_all()}))


if __name__ == "__main__":
    main()
