"""What Ray tasks and actors take their work from: a durable queue on a topic, and pools of workers over a subscription.

Left to others: publishing and consuming, which `client` does.
"""
