"""The attacks of `tests/attacks.py`, by what they aim at."""
