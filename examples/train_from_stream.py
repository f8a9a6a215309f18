"""Training from a stream, each sample exactly once: the checkpoint has the weights together with the positions.

A training that is killed goes on from its checkpoint. What it learned since then is not in those weights, and comes
again. On a cluster of several machines the checkpoint lies on storage that all of them reach.
"""

import os
import pickle
import signal
import tempfile
from pathlib import Path

import numpy as np
import ray

import magnetar

SAMPLES, BATCH, TRUTH = 2_000, 100, np.array([3.0, -2.0, 1.0])


def save(checkpoint: Path, state: object) -> None:
    """Replace the checkpoint as a whole: after a crash there is the old one or the new one."""
    with open(f"{checkpoint}.new", "wb") as file:
        file.write(pickle.dumps(state))
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{checkpoint}.new", checkpoint)


@ray.remote(num_cpus=0.5, max_retries=3)
def train(checkpoint: Path, dies_after: int) -> tuple[np.ndarray, int, int]:
    """Train a linear model; returns the weights, of how many samples, and how many of them the checkpoint had."""
    weights, seen, positions = pickle.loads(checkpoint.read_bytes()) if checkpoint.exists() else (np.zeros(3), 0, {})
    began_with = seen
    with magnetar.Client() as client:
        # Failover: an attempt that follows another one waits until the broker has seen that one end.
        consumer = client.subscribe("samples", "training", magnetar.ConsumerType.Failover)
        consumer.seek(lambda topic: positions.get(topic, magnetar.MessageId.earliest))
        while seen < SAMPLES:
            for message in consumer.receive_many(min(BATCH, SAMPLES - seen), timeout_millis=60_000):
                *features, target = np.frombuffer(message.data())
                weights = weights - 0.05 * (weights @ features - target) * np.array(features)
                positions[message.topic_name()] = message.message_id()
                seen += 1
            if began_with == 0 and seen >= dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
            save(checkpoint, (weights, seen, positions))
            for position in positions.values():
                consumer.acknowledge_cumulative(position)  # no attempt needs what lies before: the topic may drop it
    return weights, seen, began_with


def main() -> None:
    magnetar.connect()
    with magnetar.Client() as client, tempfile.TemporaryDirectory() as directory:
        training = train.remote(Path(directory, "checkpoint"), SAMPLES // 2)
        features = np.random.default_rng(7).normal(size=(SAMPLES, 3))
        producer = client.create_producer("samples", batching_enabled=True)
        producer.send_many([np.append(row, row @ TRUTH).tobytes() for row in features])
        weights, seen, began_with = ray.get(training)
        print(f"died, and began again with the weights of {began_with} samples")
        print(f"learned {seen} samples: weights {np.round(weights, 2).tolist()}")


if __name__ == "__main__":
    main()
