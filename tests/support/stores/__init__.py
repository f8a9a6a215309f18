"""Real bookie stores and managed ledgers, opened over files or bookies of a test."""
