"""Bytes and names: what travels and how things are called.

Pulsar's frames, commands, entries and batches; the internal RPC and the bookie protocol; topic names, message ids,
hashes, metadata keys, errors. Nothing here touches sockets, clocks or threads, and nothing here imports another room.
Malformed bytes end in one of `ProtocolError`, `FrameTooLarge`, `EntryCorrupt` or `ChecksumError`, never in anything
else.
"""
