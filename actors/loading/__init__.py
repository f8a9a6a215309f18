"""Which topics a broker loads, in which order, and which of them it leaves alone until somebody asks.

Left to others: what a loaded topic is, and how it is opened (`actors.topics`).
"""
