"""The internal RPC: framed requests and answers over one connection, with a handshake that proves roles.

Left to others: the methods themselves, and who may call them (`actors.members`).
"""
