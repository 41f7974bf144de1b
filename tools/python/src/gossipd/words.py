"""What callers give, as what it must be; a mistake is named."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, value: Any) -> int:
    """`value` as an integer; TypeError where it is none, as 16.0."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} is {value!r} ({type(value).__name__}); give a whole number (of a division, //)"
        ) from None
