"""What a test compares with: where copies are, what a chaos run has to show, what documents say."""
