"""JSON as the protocol has it: one value per line."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Callable, Dict, List, Tuple
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

# raw_decode, because decode also looks for blanks around the value, and the worker sends none
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


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]')
_MEMBER = re.compile(r'\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*:')


def _parts(text: str) -> List[str]:
    """The members of an object, or the items of a list, as they are written. Does not recurse."""
    found: List[str] = []
    levels, begin = 0, 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "{[":
            levels += 1
            begin = token.end() if levels == 1 else begin
        elif mark in "}]" or (mark == "," and levels == 1):
            levels -= mark != ","
            if levels == (1 if mark == "," else 0):
                found.append(text[begin : token.start()])
                begin = token.end()
    return [part for part in found if part.strip()]


def salvage(line: str) -> Tuple[Dict[str, Any], List[str]]:
    """The readable part of a message that cannot be read as a whole, and why the rest cannot.

    A number may be longer than Python converts, or a value nested deeper than it recurses. Of a list of jobs, those
    that have such a value have the reason in ``unreadable``.
    """
    found: Dict[str, Any] = {}
    reasons: List[str] = []
    for part in _parts(line):
        name = _MEMBER.match(part)
        if name is None:
            raise ValueError("not an object")
        key, text = _decode(name.group(1))[0], part[name.end() :].strip()
        try:
            found[key] = _decode(text)[0]
        except (ValueError, RecursionError) as error:
            if key != "jobs" or not text.startswith("["):
                reasons.append(f"{key} cannot be read: {error}")
                continue
            found[key] = []
            for job in _parts(text):
                readable, why = salvage(job)
                found[key].append({**readable, "unreadable": "; ".join(why)} if why else readable)
    return found, reasons
