"""What an owner does with a topic: publishing, subscriptions, counts, and the topics that are loaded.

Left to others: how entries are stored (`storage.managed`) and the clients' protocol (`actors.connections`).
"""
