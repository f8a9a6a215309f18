"""Durability, from a bookie's disk up to a topic's cursors.

Bookie side: group commit, segments and their index, fences, compaction, garbage collection. Ledger side: the client of
bookies, writer, reader and recovery of one ledger, their decisions in pure state machines (`*_state`). Topic side: the
managed ledger, a fenced chain of ledgers with one writer, and the cursors on it. Beneath all of them the metadata
store, whose every change is a compare-and-set.

What it leaves to others: who owns a topic (the coordinator), what the entries mean (brokers and clients).
"""
