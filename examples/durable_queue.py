"""A queue between tasks that loses nothing: a worker dies with an order in its hands, and another one ships that order.

magnetar start --detach
python examples/durable_queue.py
"""

import os
import signal

import ray
from ray.exceptions import WorkerCrashedError

import magnetar


@ray.remote(num_cpus=0.5, max_retries=0)
def ship(orders: magnetar.Queue, shipped: magnetar.Queue, dies: bool) -> int:
    """Ship orders until there is None in place of one; returns how many it shipped."""
    count = 0
    while (order := orders.get()) is not None:  # the order is held until the next get, or until this process ends
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        shipped.put(f"{order['item']} to {order['city']}")
        count += 1
    return count


def main() -> None:
    magnetar.connect()
    orders, shipped = magnetar.Queue(maxsize=1_000), magnetar.Queue()
    for number, city in enumerate(["Rome", "Oslo", "Lima", "Cork", "Bonn", "Baku"]):
        orders.put({"item": f"lamp {number}", "city": city})  # returns when the order is on disks

    try:
        ray.get(ship.remote(orders, shipped, True))
    except WorkerCrashedError:
        print("a worker died with an order")

    workers = [ship.remote(orders, shipped, False) for _ in range(2)]
    for order in sorted(shipped.get(timeout=60) for _ in range(6)):
        print(order)
    orders.put_nowait_batch([None] * len(workers))
    print(sum(ray.get(workers)), "orders shipped")
    orders.shutdown()
    shipped.shutdown()


if __name__ == "__main__":
    main()
