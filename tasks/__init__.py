"""What Ray tasks and actors take their work from: a durable queue on a topic.

Left to others: publishing and consuming, which `client` does.
"""
