"""Programs that generate files of this repository or measure them."""
