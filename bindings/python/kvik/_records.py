"""Records of the native module. Its generator writes fields into `str` alone, texts without quotes, and equality that fails
where the other object is no such record."""
from __future__ import annotations

import enum

from . import _native


def complete_records() -> None:
    """Gives every record a `repr` with its fields, and equality with any object."""
    for record in vars(_native).values():
        is_own = isinstance(record, type) and record.__module__ == _native.__name__
        if is_own and "__str__" in vars(record) and not issubclass(record, (BaseException, enum.Enum)):
            for name, method in (("__repr__", _shown), ("__str__", _shown), ("__eq__", _is_equal)):
                setattr(record, name, method)


def _shown(record: object) -> str:
    fields = ((name, str(value) if isinstance(value, enum.Enum) else repr(value)) for name, value in vars(record).items())
    return f"{type(record).__name__}({', '.join(f'{name}={value}' for name, value in fields)})"


def _is_equal(record: object, other: object) -> bool:
    return type(record) is type(other) and vars(record) == vars(other)
