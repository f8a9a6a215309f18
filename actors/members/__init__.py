"""How any process takes part in the cluster: its link to the coordinator, calls to other members, lookups, and
who may call what.

Left to others: what the coordinator decides (`actors.coordinator`).
"""
