"""Stand-ins in memory for what a test does without: bookies, brokers, managed ledgers, threads, figures."""
