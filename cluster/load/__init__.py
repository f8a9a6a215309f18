"""Measured load: `magnetar perf produce` and `magnetar perf consume`, with the options of `pulsar-perf`.

One process is one client on one core. It needs the extra `perf`: HDR histograms, and matplotlib for plots.
"""
