"""The code of a detector from outside this package, in a digest, by which a store tells its versions apart."""

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from offaxis.detectors import Detector
from offaxis.files import digest

_OURS = ("offaxis", "torch", "builtins", "abc", "typing")
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def code_digest(detector: Detector) -> str:
    """Return a digest of the code of a detector's class; empty for the detectors of this package.

    It covers the methods and plain attributes of the class and of those that it derives from, and the functions and plain
    values of their modules that methods name. It is that of the compiled code: a file that was edited but is not yet imported
    again changes nothing, and neither do comments; another version of Python does.
    """
    if type(detector).__module__.split(".")[0] in _OURS:
        return ""
    seen: set[FunctionType | type] = set(type(detector).__mro__)
    own = [kind for kind in type(detector).__mro__ if kind.__module__.split(".")[0] not in _OURS]
    return digest([[[name, _words(value, seen)] for name, value in sorted(_members(kind))] for kind in own])


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and attributes that a class defines itself."""
    for name, value in vars(kind).items():
        if isinstance(value, FunctionType) or not name.startswith("__"):
            yield name, value


def _words(value: Any, seen: set[FunctionType | type]) -> Any:
    """Return a value in words that are the same in every process; of functions, what they do and what they name."""
    if isinstance(value, property):
        return [_words(function, seen) for function in (value.fget, value.fset)]
    if isinstance(value, tuple | list):
        return [_words(part, seen) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, dict):
        return [[repr(key), _words(part, seen)] for key, part in value.items()]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), _words(value.co_consts, seen)]
    if isinstance(value, type):
        if value in seen:
            return value.__qualname__
        seen.add(value)
        return [[name, _words(part, seen)] for name, part in sorted(_members(value))]
    function = getattr(value, "__func__", getattr(value, "func", value))  # of class methods and cached properties
    if isinstance(function, FunctionType):
        if function in seen:
            return function.__qualname__
        seen.add(function)
        named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        used = [[name, _words(one, seen)] for name, one in sorted(named.items()) if _is_near(one, function)]
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, held, used)
        return [_words(part, seen) for part in parts]
    return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__


def _names(code: CodeType) -> set[str]:
    """Return the names that code uses, with that of the functions inside it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _is_near(value: Any, function: FunctionType) -> bool:
    """Return whether something that a function names is a constant, or a function or class of the same module."""
    here = isinstance(value, (FunctionType, type)) and value.__module__ == function.__module__
    return here or isinstance(value, (*_PLAIN, tuple, list, dict, set, frozenset))
