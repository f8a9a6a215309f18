"""Slots, the unit in which brokers own topics: who owns which, decided and stored by the coordinator.

It knows neither connections nor topics. `docs/design/architecture.md` has the whole picture.
"""
