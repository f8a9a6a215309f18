"""Typed columns of a bulk read: payloads decoded by the schemas of their topic, column by column.

`rows` decodes the record batches of a read, `choice` says which columns a read has. The other files have one kind of
schema each.
"""
