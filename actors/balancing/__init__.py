"""Load balancing: what topics cost their brokers, averages of it, and which topics shall move for it.

Left to others: rounds (`coordinator.load_balancer`), moving (`coordinator.rebalancing`),
and who takes topics at all (`coordinator.membership`).
"""
