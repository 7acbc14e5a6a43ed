"""From a user's function to one that takes a job: where its arguments come from is decided when it is registered."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._decode import Decoder, decoder, hints_of, is_whole
from ._job import AsyncJob, BaseJob, Job
from ._outcomes import BadPayload

AnyFunction = Callable[..., Any]
Around = Callable[[Sequence[Any]], ContextManager[Any]]
"""Makes a context manager that is entered around each call of a function, from the jobs of the call."""


class Registered(NamedTuple):
    """A function that runs the jobs of a command."""

    command: str
    function: AnyFunction
    run: Callable[[Any], Any]
    """Takes the job, or a list of jobs if it is a batch. Call it as ``call`` does."""
    is_async: bool
    most: Optional[int]
    """The largest number of jobs in one call, if it takes batches."""
    payload: Optional[Decoder] = None
    """Of a batch: what decodes the payload of each job before the call."""


def check_command(command: object, decorator: str) -> None:
    """A TypeError or ValueError for what cannot be the name of a command."""
    if not isinstance(command, str):
        raise TypeError(f'write {decorator} above the function: a command is a name, not {command!r:.100}')
    if not command.strip() or len(command.encode()) > 200:
        raise ValueError(f"a command is a name of 1 to 200 bytes, not {command!r}")


def registered(
    command: str,
    function: AnyFunction,
    *,
    most: Optional[int] = None,
    payload: Any = None,
    around: Optional[Around] = None,
) -> Registered:
    """Inspect a function. A TypeError if a payload could never become its arguments."""
    if not callable(function):
        raise TypeError(f"{command}: this is not a function: {function!r:.100}")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))
    decode: Optional[Decoder] = None
    if most is None:
        run = _with_arguments(command, function)
    else:
        run, kind = _with_jobs(command, function, payload)
        decode = None if kind is None else _decoder(command, "payload", kind)
    if around is not None:
        run = _around(run, around, is_async, most is not None)
    return Registered(command, function, run, is_async, most, decode)


def _around(run: Callable[[Any], Any], around: Around, is_async: bool, is_batch: bool) -> Callable[[Any], Any]:
    def within(given: Any) -> Any:
        with around(given if is_batch else [given]):
            return run(given)

    async def within_async(given: Any) -> Any:
        with around(given if is_batch else [given]):
            return await run(given)

    return within_async if is_async else within


def _inspected(function: AnyFunction) -> Tuple[List[inspect.Parameter], Dict[str, Any]]:
    """The parameters of a function, and their annotations."""
    parameters = list(inspect.signature(function).parameters.values())
    return parameters, hints_of(function if inspect.isroutine(function) else type(function).__call__)


def _with_jobs(command: str, function: AnyFunction, payload: Any) -> Tuple[Callable[[Any], Any], Any]:
    """A function that takes a list of jobs, or of payloads, and the type of the payloads if they are to be decoded."""
    parameters, hints = _inspected(function)
    required = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    first = parameters[0] if parameters else None
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD) or len(required) > 1:
        raise TypeError(
            f"{command}: a function for batches takes one list, as index(jobs: List[Job]) or index(pages: List[Page])"
        )
    hint = hints.get(first.name, Any)
    if hint in (Any, list, List) or hint is inspect.Parameter.empty:
        return function, payload
    arguments = typing.get_args(hint)
    sequences = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
    if typing.get_origin(hint) not in sequences or len(arguments) != 1:
        raise TypeError(f"{command}, parameter {first.name}: a batch is a list, such as List[Job], not {hint!r}")
    item = arguments[0]
    if item is Any or isinstance(item, typing.TypeVar) or (inspect.isclass(item) and issubclass(item, BaseJob)):
        return function, payload
    if payload is not None:
        raise TypeError(f"{command}: with payload=…, the function takes List[Job], and {first.name} is {hint!r}")
    return lambda jobs: function([job.payload for job in jobs]), item


def _with_arguments(command: str, function: AnyFunction) -> Callable[[BaseJob], Any]:
    parameters, hints = _inspected(function)
    takes_job = bool(parameters) and _is_job(parameters[0], hints.get(parameters[0].name))
    rest = parameters[1:] if takes_job else parameters
    for parameter in rest:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{command}: the fields of a payload have names, so {parameter} cannot be positional")
        hint = hints.get(parameter.name)
        if hint in (Job, AsyncJob) or (parameter.name == "job" and hint is None):
            raise TypeError(f"{command}, parameter {parameter.name}: the job must be the first parameter")

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
