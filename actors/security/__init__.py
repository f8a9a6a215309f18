"""Who a client is, and what its role may do.

Left to others: the transport's encryption (`runtime.sockets`), who the members of a cluster are (`runtime.rpc`), and
where permissions are stored (`policies`).
"""
