"""What goes wrong in a run, drawn from its seed: in any world, in whole clusters, and in worlds of ledgers alone."""
