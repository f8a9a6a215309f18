"""What services stand on: clock, chance, threads, files, settings, metrics, and the internal RPC connection.

Everything here may be replaced by the simulator's own version, so a service never reaches past it to the operating
system.
"""
