"""A change feed into Parquet files, each change once: an export adds a directory with what came since the last one.

The name of a directory says up to which message it has the feed, and the directory gets it when it is whole. So an
export that dies leaves nothing that counts, and the next one begins where the last whole one ended.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import magnetar


@dataclass
class Customer:
    name: str
    city: str


def export(client: magnetar.Client, lake: Path) -> None:
    done = sorted(lake.glob("changes-*"))
    mark = bytes.fromhex(done[-1].name.rpartition("-")[2]) if done else b""
    earliest = magnetar.InitialPosition.Earliest
    feed = client.subscribe("customers", "lake", initial_position=earliest)  # keeps what no export has got yet
    end = feed.get_last_message_id()
    if end.serialize() != mark:
        changes = magnetar.data.read_topic("customers", mark or "earliest", end, schema="auto")

        def later(rows: pa.Table) -> pa.Table:  # a read begins with its start, which the last export has got
            return rows.filter(pc.field("__messageId") != mark)

        unfinished = Path(tempfile.mkdtemp(dir=lake))
        changes.map_batches(later, batch_format="pyarrow").write_parquet(str(unfinished))
        unfinished.rename(lake / f"changes-{len(done):06}-{end.serialize().hex()}")
    feed.acknowledge_cumulative(end)
    feed.close()


def replay(lake: Path) -> dict[str, Customer]:
    found: dict[str, Customer] = {}
    for directory in sorted(lake.glob("changes-*")):
        rows = pq.read_table(directory).to_pylist()
        for row in sorted(rows, key=lambda row: magnetar.MessageId.deserialize(row["__messageId"])):
            found[row["__key"]] = Customer(row["name"], row["city"])
            if row["name"] is None:  # a null value: the customer was deleted
                del found[row["__key"]]
    return found


def main() -> None:
    magnetar.connect()
    with magnetar.Client() as client, tempfile.TemporaryDirectory() as directory:
        schema, lake = magnetar.JsonSchema(Customer), Path(directory)
        producer = client.create_producer("customers", schema=schema)
        producer.send(Customer("Ann", "Rome"), partition_key="1")
        producer.send(Customer("Bob", "Oslo"), partition_key="2")
        export(client, lake)
        producer.send(Customer("Ann", "Lima"), partition_key="1")
        producer.send(Customer("Eve", "Cork"), partition_key="3")
        producer.send(None, partition_key="2")
        export(client, lake)
        export(client, lake)  # nothing is new
        print([pq.read_table(one).num_rows for one in sorted(lake.glob("changes-*"))], "changes exported")
        print(replay(lake))
        now: dict[str, Customer] = {}
        client.create_table_view("customers", schema=schema).for_each(now.__setitem__)
        print("the files have what the topic has:", replay(lake) == now)


if __name__ == "__main__":
    main()
