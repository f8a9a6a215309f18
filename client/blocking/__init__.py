"""The public face for threads: client, producer, consumer, reader, named as in Pulsar's Python client.

The client runs on a loop in a thread of its own. Left to others: what the calls do.
"""
