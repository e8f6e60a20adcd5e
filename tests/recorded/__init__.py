"""A fixed set of requests, the answers to them, and how two sets of answers are compared."""
