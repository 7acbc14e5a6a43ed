"""From a user's function to one that takes a job: where its arguments come from is decided when it is registered."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, NamedTuple, Optional

from ._decode import Decoder, decoder, hints_of, is_whole
from ._job import AsyncJob, BaseJob, Job
from ._outcomes import BadPayload

AnyFunction = Callable[..., Any]


class Registered(NamedTuple):
    """A function that runs the jobs of a command."""

    command: str
    function: AnyFunction
    run: Callable[[Any], Any]
    """Takes the job, or a list of jobs if it is a batch."""
    is_async: bool
    most: Optional[int]
    """The largest number of jobs in one call, if it takes batches."""


def registered(command: str, function: AnyFunction, most: Optional[int]) -> Registered:
    """Inspect a function. A TypeError if a payload could never become its arguments."""
    if not isinstance(command, str) or not command.strip() or len(command.encode()) > 200:
        raise ValueError(f"a command is a name of 1 to 200 bytes, not {command!r}")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise ValueError(f"most must be at least 1, not {most!r}")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))
    run = function if most is not None else _with_arguments(command, function)
    return Registered(command, function, run, is_async, most)


def _with_arguments(command: str, function: AnyFunction) -> Callable[[BaseJob], Any]:
    parameters = list(inspect.signature(function).parameters.values())
    hints = hints_of(function if inspect.isroutine(function) else type(function).__call__)
    takes_job = bool(parameters) and _is_job(parameters[0], hints.get(parameters[0].name))
    rest = parameters[1:] if takes_job else parameters
    for parameter in rest:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{command}: the fields of a payload have names, so {parameter} cannot be positional")

    if not rest:
        return function if takes_job else lambda job: function()

    if len(rest) == 1 and rest[0].kind is not rest[0].VAR_KEYWORD:
        hint = hints.get(rest[0].name, Any)
        if rest[0].name == "payload" or is_whole(hint):
            whole = _decoder(command, rest[0].name, hint)
            if takes_job:
                return lambda job: function(job, whole(job.payload, "payload"))
            return lambda job: function(whole(job.payload, "payload"))

    named = [parameter for parameter in rest if parameter.kind is not parameter.VAR_KEYWORD]
    takes_others = len(named) < len(rest)
    decoders = {one.name: _decoder(command, one.name, hints.get(one.name, Any)) for one in named}
    required = [one.name for one in named if one.default is one.empty]

    def run(job: BaseJob) -> Any:
        arguments = _arguments(job.payload, decoders, required, takes_others)
        return function(job, **arguments) if takes_job else function(**arguments)

    return run


def _is_job(parameter: inspect.Parameter, hint: Any) -> bool:
    return parameter.name == "job" or (inspect.isclass(hint) and issubclass(hint, (Job, AsyncJob)))


def _decoder(command: str, name: str, hint: Any) -> Decoder:
    try:
        return decoder(hint)
    except TypeError as error:
        raise TypeError(f"{command}, parameter {name}: {error}") from None


def _arguments(payload: Any, decoders: Dict[str, Decoder], required: Any, takes_others: bool) -> Dict[str, Any]:
    if not isinstance(payload, dict):
        raise BadPayload(f"payload: expected an object with {', '.join(decoders) or 'named fields'}")
    for name in required:
        if name not in payload:
            raise BadPayload(f"payload.{name} is missing")
    arguments = {name: decode(payload[name], f"payload.{name}") for name, decode in decoders.items() if name in payload}
    if takes_others:
        arguments.update({name: value for name, value in payload.items() if name not in decoders})
    return arguments
