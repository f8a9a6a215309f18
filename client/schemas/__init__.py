"""Schemas of the client: how values become payloads and back, and the definition that is registered with the broker.

Nothing here talks to a broker. `client/core` fetches definitions, `client/producing` registers them, and
`client/consuming` decodes by the writer's version.
"""
