"""From JSON to the types that a function asks for, with an error that names the field."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import sys
import threading
import types
import typing
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Callable, Dict, List, Union
from uuid import UUID

from ._outcomes import BadPayload

Decoder = Callable[[Any, str], Any]

_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_KINDS = {str: "a string", int: "a number", float: "a number", bool: "a boolean", list: "a list", dict: "an object"}
_UNIONS = (Union, getattr(types, "UnionType", Union))


def _refuse(path: str, expected: str, value: Any) -> BadPayload:
    if isinstance(value, (dict, list)):
        shown = _KINDS[type(value)]
    else:
        shown = "null" if value is None else f"{value!r:.60}"
    return BadPayload(f"{path}: expected {expected}, not {shown}")


def _any(value: Any, path: str) -> Any:
    return value


def _none(value: Any, path: str) -> None:
    if value is not None:
        raise _refuse(path, "null", value)


def _plain(kind: type) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise _refuse(path, _NAMES[kind], value)
        return value

    return decode


def _float(value: Any, path: str) -> float:
    if type(value) is not float and type(value) is not int:
        raise _refuse(path, "a number", value)
    return float(value)


def _datetime(text: str) -> datetime:
    # before Python 3.11 the Z is not known
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


def _date(text: str) -> date:
    return date.fromisoformat(text)


def _from_text(make: Callable[[str], Any], expected: str) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        try:
            if isinstance(value, str):
                return make(value)
        except ValueError:
            pass
        raise _refuse(path, expected, value)

    return decode


def _decimal(value: Any, path: str) -> Decimal:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            return Decimal(str(value))
        except InvalidOperation:
            pass
    raise _refuse(path, "a decimal number", value)


def _timedelta(value: Any, path: str) -> timedelta:
    return timedelta(seconds=_float(value, path))


def _list_of(item: Decoder, make: Callable[[List[Any]], Any]) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise _refuse(path, "a list", value)
        return make([item(one, f"{path}[{number}]") for number, one in enumerate(value)])

    return decode


def _tuple_of(items: List[Decoder]) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise _refuse(path, f"a list of {len(items)} values", value)
        return tuple(item(one, f"{path}[{number}]") for number, (item, one) in enumerate(zip(items, value)))

    return decode


def _dict_of(item: Decoder) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _refuse(path, "an object", value)
        return {key: item(one, f"{path}.{key}") for key, one in value.items()}

    return decode


def _one_of(decoders: List[Decoder], expected: str) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        for decoder in decoders:
            try:
                return decoder(value, path)
            except BadPayload:
                continue
        raise _refuse(path, expected, value)

    return decode


def _literal(values: typing.Tuple[Any, ...]) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        for known in values:
            if known == value and type(known) is type(value):
                return known
        raise _refuse(path, "one of " + ", ".join(map(repr, values)), value)

    return decode


def _enum(kind: typing.Type[Enum]) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _refuse(path, "one of " + ", ".join(repr(one.value) for one in kind), value) from None

    return decode


def _fields(kind: type, required: Dict[str, Decoder], optional: Dict[str, Decoder]) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _refuse(path, "an object", value)
        found = {}
        for name, decoder in required.items():
            if name not in value:
                raise BadPayload(f"{path}.{name} is missing")
            found[name] = decoder(value[name], f"{path}.{name}")
        for name, decoder in optional.items():
            if name in value:
                found[name] = decoder(value[name], f"{path}.{name}")
        return kind(**found)

    return decode


def _hints_in(kind: Any) -> Dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except NameError as error:
        raise TypeError(f"an annotation of {kind.__name__} cannot be resolved: {error}") from None


def _dataclass(kind: Any) -> Decoder:
    hints = _hints_in(kind)
    required: Dict[str, Decoder] = {}
    optional: Dict[str, Decoder] = {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        (optional if has_default else required)[field.name] = decoder(hints[field.name])
    return _fields(kind, required, optional)


def _typed_dict(kind: Any) -> Decoder:
    hints = _hints_in(kind)
    required = {name: decoder(hint) for name, hint in hints.items() if name in kind.__required_keys__}
    optional = {name: decoder(hint) for name, hint in hints.items() if name not in kind.__required_keys__}
    return _fields(dict, required, optional)


_begun: Dict[Any, Dict[str, Decoder]] = {}
_beginning = threading.RLock()


def _once(kind: Any, make: Callable[[Any], Decoder]) -> Decoder:
    """The decoder of a type that may refer to itself: there, the decoder that is being made is used when it is done."""
    with _beginning:
        if kind in _begun:
            made = _begun[kind]

            def decode(value: Any, path: str) -> Any:
                try:
                    return made["decoder"](value, path)
                except RecursionError:
                    raise BadPayload(f"{path[:100]}: nested too deeply") from None

            return decode
        _begun[kind] = {}
        try:
            return _begun[kind].setdefault("decoder", make(kind))
        finally:
            del _begun[kind]


def _model(kind: Any) -> Decoder:
    # pydantic 2; what it raises for a value that does not fit is a ValueError
    def decode(value: Any, path: str) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:
            errors = getattr(error, "errors", None)
            if not callable(errors):
                raise BadPayload(f"{path}: {error}") from error
            # without the values: they do not belong in an error that is stored
            told = ("".join(f".{part}" for part in one["loc"]) + f": {one['msg']}" for one in errors())
            raise BadPayload("; ".join(path + one for one in told)) from None

    return decode


_SIMPLE: Dict[Any, Decoder] = {
    Any: _any,
    object: _any,
    inspect.Parameter.empty: _any,
    None: _none,
    type(None): _none,
    str: _plain(str),
    int: _plain(int),
    bool: _plain(bool),
    float: _float,
    list: _plain(list),
    dict: _plain(dict),
    datetime: _from_text(_datetime, "a time such as '2026-11-18T09:00:00Z'"),
    date: _from_text(_date, "a date such as '2026-11-18'"),
    UUID: _from_text(UUID, "a UUID"),
    Decimal: _decimal,
    timedelta: _timedelta,
}


def is_whole(annotation: Any) -> bool:
    """Whether a type stands for a whole payload, and not for one value in it."""
    return inspect.isclass(annotation) and (
        dataclasses.is_dataclass(annotation) or hasattr(annotation, "model_validate") or _is_typed_dict(annotation)
    )


def _is_typed_dict(annotation: Any) -> bool:
    """Whether it is a TypedDict."""
    return isinstance(annotation, type) and issubclass(annotation, dict) and hasattr(annotation, "__required_keys__")


def decoder(annotation: Any) -> Decoder:
    """The function that turns JSON into a value of this type. A TypeError if there is none."""
    try:
        if annotation in _SIMPLE:
            return _SIMPLE[annotation]
    except TypeError:  # cannot be hashed
        pass
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        return _one_of([decoder(one) for one in arguments], " or ".join(_spelled(one) for one in arguments))
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is not None and hasattr(annotation, "__metadata__"):  # Annotated
        return decoder(arguments[0])
    if origin in (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection):
        return _list_of(decoder(arguments[0]), list)
    if origin in (set, frozenset):
        return _list_of(decoder(arguments[0]), origin)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _list_of(decoder(arguments[0]), tuple)
        return _tuple_of([decoder(one) for one in arguments])
    if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping) and arguments[0] is str:
        return _dict_of(decoder(arguments[1]))
    if isinstance(annotation, typing.TypeVar):
        return _any
    if hasattr(annotation, "__supertype__"):  # NewType
        return decoder(annotation.__supertype__)
    if inspect.isclass(annotation):
        if issubclass(annotation, Enum):
            return _enum(annotation)
        if dataclasses.is_dataclass(annotation):
            return _once(annotation, _dataclass)
        if hasattr(annotation, "model_validate"):
            return _model(annotation)
        if _is_typed_dict(annotation):
            return _once(annotation, _typed_dict)
    raise TypeError(
        f"JSON cannot be turned into {_spelled(annotation)}; use JSON types, datetime, date, timedelta, UUID, Decimal, "
        "enums, dataclasses, TypedDict or pydantic models"
    )


def _spelled(annotation: Any) -> str:
    if annotation in (None, type(None)):
        return "null"
    if annotation in _NAMES:
        return _NAMES[annotation]
    return getattr(annotation, "__name__", None) or str(annotation)


def hints_of(function: Callable[..., Any]) -> Dict[str, Any]:
    """The annotations of a function. Those that cannot be resolved, such as names that only a type checker imports,
    are ignored."""
    try:
        return typing.get_type_hints(function)
    except Exception:
        module = sys.modules.get(function.__module__)
        known = dict(vars(typing), **(vars(module) if module else {}))
        hints = {}
        for name, annotation in getattr(function, "__annotations__", {}).items():
            try:
                hints[name] = eval(annotation, known) if isinstance(annotation, str) else annotation
            except Exception:
                continue
        return hints
