"""Checks of arguments that several settings share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from qvllm_engine.errors import ArgumentError

FLOAT32_MAX = 3.4028234663852886e38


def require_int(name: str, value: Any, minimum: int, maximum: int = 2**31 - 1) -> None:
    """Raise ArgumentError unless ``value`` is an integer (not a bool) in range."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ArgumentError(f"{name} must be an integer, got {value!r}")
    if not minimum <= int(value) <= maximum:
        raise ArgumentError(f"{name} must be {minimum} to {maximum}, got {value}")


def require_number(name: str, value: Any) -> None:
    """Raise ArgumentError unless ``value`` is a number (not a bool) that float32 can hold."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        raise ArgumentError(f"{name} must be a finite number, got {value!r}")


def require_bool(name: str, value: Any) -> None:
    """Raise ArgumentError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True or False, got {value!r}")


def describe(value: Any) -> str:
    """The type of a value, and of its items, for messages."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        kinds = sorted({type(item).__name__ for item in value})
        return f"a {type(value).__name__} of {' and '.join(kinds) or 'nothing'}"
    return type(value).__name__


def nearest(name: str, known: Sequence[str], what: str, cutoff: float = 0.6) -> str:
    """Which of the ``known`` names is meant, if one is as like ``name`` as ``cutoff`` says (0 to 1); else all there are."""
    near = get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else f"its {what} are {', '.join(known)}"


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Say in an ArgumentError which of several it is about."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{what}: {error}") from error
