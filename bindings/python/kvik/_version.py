"""The version of the package that is installed."""
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("kvik")
except PackageNotFoundError:
    # Sources that nobody has installed.
    __version__ = "0+unknown"
