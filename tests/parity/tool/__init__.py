"""Pulsar's own `pulsar-admin` as a peer: how it is run, what it sends, and how that is sent again without Java."""
