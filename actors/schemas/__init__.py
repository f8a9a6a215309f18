"""Schemas of topics: what a definition may be, which definitions go together, and the registry of a topic's versions.

Left to others: the commands that carry schemas (`actors.connections`), the admin's paths (`actors.admin`), and the
record (`storage.metadata.schema_record`).
"""
