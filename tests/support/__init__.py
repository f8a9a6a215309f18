"""Helpers that tests of every kind share. `import support` works wherever `tests` is on the path."""
