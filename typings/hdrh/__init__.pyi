"""What this repository uses of hdrhistogram, which brings no types of its own."""
