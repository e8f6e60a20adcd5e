"""A fleet of kviks behind a router, measured: `python -m bench.fleet --help`, and README.md."""
