"""The attacks of `tests/attacks.py`, by target."""
