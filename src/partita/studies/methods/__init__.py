"""Small problems with known answers."""
