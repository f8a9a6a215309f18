"""What runs as Ray actors: coordinator, bookies, brokers and the admin HTTP, and the thin classes that Ray sees.

Every service is a plain asyncio class that takes an `Environment`. Only `ray_actors` and `ray_launcher` know of Ray,
and they load it late. So the same services run embedded in one process and in the simulator.
"""
