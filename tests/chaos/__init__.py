"""A cluster on a Ray of its own that is harmed while clients use it, and what is judged afterwards. See `run.py`."""
