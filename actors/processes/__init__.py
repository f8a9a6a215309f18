"""How services become processes: the plan of a cluster, its assembly, supervision, and launchers.

Left to others: what a service does.
"""
