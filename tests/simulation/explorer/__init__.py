"""An exhaustive search of fencing and recovery with few nodes. It needs no simulated world. See `reduced`."""
