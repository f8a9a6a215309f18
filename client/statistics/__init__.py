"""Statistics of producers and consumers: what `get_stats` returns, and the intervals that its rates are of.

Who counts, and when, is left to `client/producing` and `client/consuming`.
"""
