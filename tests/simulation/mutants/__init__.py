"""Known bugs that can be switched on in production classes, for `gate.py` and `explore.py`. See `catalog`."""
