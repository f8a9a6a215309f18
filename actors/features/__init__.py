"""The table of topic features: the one place that lists them all.

Left to others: what a feature is (`topics.feature`), and each feature (its own package).
"""
