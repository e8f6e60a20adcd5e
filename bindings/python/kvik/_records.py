"""Records of the native module, which show their fields: its generator writes these into `str` alone."""
from __future__ import annotations

import enum

from . import _native


def show_fields() -> None:
    """Makes `repr` of every record what its `str` is."""
    for record in vars(_native).values():
        is_own = isinstance(record, type) and record.__module__ == _native.__name__
        if is_own and "__str__" in vars(record) and not issubclass(record, (BaseException, enum.Enum)):
            setattr(record, "__repr__", record.__str__)
