"""One broker process: its service, its session with the coordinator, the methods that other members call.

Left to others: topics (`actors.topics`) and clients' connections (`actors.connections`).
"""
