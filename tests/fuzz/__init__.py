"""Nearly valid bytes for every decoder, connection and file format. `run.py` runs the targets, see `targets`."""
