"""Slots, the unit in which brokers own topics: the table of who owns which, its stored pages, and what lies in each.

Left to others: deciding (`coordinator.placement`). `docs/design/architecture.md` has the whole picture.
"""
