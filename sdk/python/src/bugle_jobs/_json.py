"""JSON as the protocol has it: one value per line."""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Callable, Dict
from uuid import UUID


def _default(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)  # pydantic
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal, PurePath)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"a value of the type {type(value).__name__} cannot be stored as JSON: {value!r:.100}")


text: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_default
).encode

_quoted: Callable[[str], str] = json.encoder.encode_basestring

# without the look for blanks around the value, which the worker does not send
_decode = json.JSONDecoder().raw_decode


def line(message: Dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return (text(message) + "\n").encode()


def done(id: str, claim: str, result: str) -> bytes:
    """The outcome that most jobs have, without building a message first."""
    return f'{{"type":"done","id":{_quoted(id)},"claim":{_quoted(claim)},"result":{result}}}\n'.encode()


def message(line: bytes) -> Dict[str, Any]:
    """A message as it was received."""
    value = _decode(line.decode())[0]
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
