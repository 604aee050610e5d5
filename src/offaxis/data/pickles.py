"""Pickles of numpy arrays, numbers and text, read by a small machine of our own that can do nothing else.

Python's unpickler is not used: it allocates by the numbers in a file and hashes what the file builds, so that a few bytes can
take all memory or all time. This one takes time and memory in proportion to the length of the file.
"""

import io
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offaxis.errors import DataError

MAX_BYTES = 2**30
_PLAIN = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"})
_NUMBERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"})
_TEXT = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_OLD_BYTES = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING"})  # what Python 2 called a string
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = 16  # of a call, at most: the type of an array has 9
_COPIES = 4  # how often a file's length of text may become bytes; once is usual
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _RefusedError(ValueError):
    """A pickle asks for something that a data file has no use for."""


class _Mark:
    """The mark on the stack that some instructions take everything behind."""


class _Function:
    """A function that a pickle may name and call: one of those below."""

    def __init__(self, call: Callable[..., Any] | None) -> None:
        self.call = call


class _Array:
    """An array, or a type of numbers, that is complete once its state has been set."""

    value: Any = None


def _empty(kind: object, shape: object, _: object) -> _Array:
    if kind is not _NDARRAY or shape != (0,):
        raise _RefusedError("an array of an unusual kind")
    return _Array()


def _dtype(name: object, *_: object) -> _Array:
    text = name.decode("latin1") if isinstance(name, bytes) else name
    if not isinstance(text, str):  # the text of anything else can take for ever
        raise _RefusedError(f"an array of a {type(text).__name__}")
    if text not in _PLAIN:
        raise _RefusedError(f"an array of {text[:40]!r}")
    made = _Array()
    made.value = np.dtype(text)
    return made


def _scalar(dtype: object, data: object = b"") -> Any:
    return np.frombuffer(_raw(data), _numbers(dtype), 1)[0]


def _from_buffer(data: object, dtype: object, shape: Any, order: Any) -> _Array:
    made = _Array()
    made.value = np.frombuffer(_raw(data), _numbers(dtype)).reshape(_shape(shape), order="F" if order == "F" else "C")
    return made


def _to_bytes(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _RefusedError("bytes in an unusual encoding")
    return text.encode("latin1")


def _raw(data: object) -> bytes:
    if isinstance(data, str):
        return data.encode("latin1")
    if not isinstance(data, bytes):
        raise _RefusedError("an array that is not made of bytes")
    return data


def _numbers(dtype: object) -> Any:
    if not isinstance(dtype, _Array) or not isinstance(dtype.value, np.dtype):
        raise _RefusedError("an array of an unusual kind")
    return dtype.value


def _shape(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or len(shape) > 4 or not all(type(n) is int and n >= 0 for n in shape):
        raise _RefusedError("an array of an unusual shape")
    return shape


_NDARRAY = _Function(None)
_ADMITTED = {
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _Function(_dtype),
    "_codecs encode": _Function(_to_bytes),
}
for _package in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_package}.multiarray _reconstruct"] = _Function(_empty)
    _ADMITTED[f"{_package}.multiarray scalar"] = _Function(_scalar)
    _ADMITTED[f"{_package}.numeric _frombuffer"] = _Function(_from_buffer)


class _Machine:
    """Carries out the instructions of a pickle one by one."""

    def __init__(self, length: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = _COPIES * length  # letters that may still become bytes

    def step(self, name: str, argument: Any) -> None:
        """Carry out one instruction."""
        push = self.stack.append
        if name in _NUMBERS:
            push(_checked_number(argument))
        elif name in _TEXT or name in _BYTES:
            push(bytes(argument) if isinstance(argument, bytearray) else argument)
        elif name in _OLD_BYTES:
            push(argument.encode("latin1"))
        elif name in _CONSTANTS:
            push(_CONSTANTS[name])
        elif name in ("MARK", "EMPTY_LIST", "EMPTY_DICT"):
            push({"MARK": _Mark, "EMPTY_LIST": list, "EMPTY_DICT": dict}[name]())
        elif name in _TUPLES:
            push(tuple(self.take(_TUPLES[name])))
        elif name in ("TUPLE", "LIST"):
            push((tuple if name == "TUPLE" else list)(self.take_marked()))
        elif name in ("APPEND", "APPENDS"):
            values = self.take(1) if name == "APPEND" else self.take_marked()
            self.top(list).extend(values)
        elif name in ("DICT", "SETITEM", "SETITEMS"):
            pairs = self.take(2) if name == "SETITEM" else self.take_marked()
            if name == "DICT":
                push({})
            _set_items(self.top(dict), pairs)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.top(object)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            push(self.memo[argument])
        else:
            self.make(name, argument)

    def make(self, name: str, argument: Any) -> None:
        """Carry out an instruction that names a function, calls it or completes an array."""
        if name in ("GLOBAL", "STACK_GLOBAL"):
            named = argument if name == "GLOBAL" else " ".join(_texts(self.take(2)))
            if named not in _ADMITTED:
                raise _RefusedError(f"the name {named.replace(' ', '.'):.80}")
            self.stack.append(_ADMITTED[named])
        elif name == "REDUCE":
            function, arguments = self.take(2)
            if not isinstance(function, _Function) or function.call is None or not isinstance(arguments, tuple):
                raise _RefusedError("a call of something that is no function here")
            self.spend(arguments)
            self.stack.append(function.call(*arguments))
        elif name == "BUILD":
            [state] = self.take(1)
            self.spend(state if isinstance(state, tuple) else ())
            _complete(self.top(_Array), state)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _RefusedError(f"the instruction {name}")

    def spend(self, arguments: tuple[Any, ...]) -> None:
        """Count what a call may copy: the same text can be passed to any number of calls, each of a few bytes."""
        if len(arguments) > _ARGUMENTS:
            raise _RefusedError(f"a call with {len(arguments)} arguments")
        self.left -= sum(len(argument) for argument in arguments if isinstance(argument, str))
        if self.left < 0:
            raise _RefusedError("more bytes than the file has")

    def take(self, count: int) -> list[Any]:
        """Remove and return the last ``count`` values."""
        values = self.stack[len(self.stack) - count :]
        if len(values) < count or any(isinstance(value, _Mark) for value in values):
            raise _RefusedError("more values than there are")
        del self.stack[len(self.stack) - count :]
        return values

    def take_marked(self) -> list[Any]:
        """Remove and return the values behind the last mark, and the mark."""
        values: list[Any] = []
        while not isinstance(self.stack[-1], _Mark):
            values.append(self.stack.pop())
        self.stack.pop()
        return values[::-1]

    def top(self, kind: type) -> Any:
        """Return the last value, which must be of a kind."""
        if isinstance(self.stack[-1], _Mark) or not isinstance(self.stack[-1], kind):
            raise _RefusedError(f"a change of something that is no {kind.__name__.strip('_').lower()}")
        return self.stack[-1]


def _texts(values: list[Any]) -> list[str]:
    for value in values:
        if not isinstance(value, str):
            raise _RefusedError(f"a {type(value).__name__} as a name")
    return values


def _checked_number(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise _RefusedError("a number of more than 64 bits")
    return value


def _set_items(target: dict[Any, Any], pairs: list[Any]) -> None:
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if not isinstance(key, str | bytes):  # to hash anything else can take for ever
            raise _RefusedError(f"a dictionary with a {type(key).__name__} as a key")
        target[key] = value


def _complete(array: _Array, state: object) -> None:
    """Set the state of an array, (version, shape, type, whether columns come first, bytes), or the byte order of a type."""
    if not isinstance(state, tuple):
        raise _RefusedError("an array of an unusual kind")
    if isinstance(array.value, np.dtype) and len(state) > 1:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("|", "<", ">", "="):
            raise _RefusedError("an array of an unusual kind")
        if order == ">":
            array.value = array.value.newbyteorder(">")
    elif array.value is None and len(state) == 5:
        _, shape, dtype, columns_first, data = state
        values = np.frombuffer(_raw(data), _numbers(dtype))
        array.value = values.reshape(_shape(shape), order="F" if columns_first else "C")
    else:
        raise _RefusedError("an array of an unusual kind")


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle that holds arrays, numbers, text, lists and dictionaries alone; its keys as text.

    Raises:
        DataError: it holds anything else, is damaged or too large. Nothing in it was executed.
    """
    try:
        length = path.stat().st_size
        if length > MAX_BYTES:
            raise DataError(f"{path} has {length:,} bytes, more than the {MAX_BYTES:,} that a pickle may have.")
        content = io.BytesIO(path.read_bytes())  # to read more than there is costs nothing there, from a file it does
        machine = _Machine(length)
        for opcode, argument, _ in pickletools.genops(content):
            machine.step(opcode.name, argument)
        [found] = machine.stack
    except _RefusedError as error:
        raise DataError(
            f"{path} is refused: a data file may hold arrays, numbers, text and containers but it is damaged or asks "
            f"for something else ({error})."
        ) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(f"{path} is damaged or truncated ({str(error)[:200]}): get it again.") from error
    if not isinstance(found, dict):
        raise DataError(f"Expected a dictionary in {path} but got {type(found).__name__}.")
    return {
        key.decode("latin1") if isinstance(key, bytes) else key: value.value if isinstance(value, _Array) else value
        for key, value in found.items()
    }
