"""Small versioned records: keys, stores, and writes whose outcome is certain.

A store keeps values under keys, each with a version that a compare-and-set names. There are stores in memory, in SQLite
and PostgreSQL, and one that asks the coordinator. The records of ledgers are here too, because bookies and writers both
read them. Left to others: what a topic's records mean (`storage.managed`).
"""
