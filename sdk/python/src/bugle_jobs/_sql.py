"""Statements on the caller's own connection and in its transaction, with the drivers and ORMs that people use.

A statement has ``{}`` for each parameter. Parameters are texts and cast in the statement, so that it does not matter
which types a driver knows, and which codecs an application has set.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence


def query(connection: Any, statement: str, parameters: Sequence[Optional[str]]) -> List[Any]:
    """Run a statement on a connection of psycopg or psycopg2, of Django, or of SQLAlchemy. Returns the first column."""
    if _is_of(connection, "asyncpg", "sqlalchemy.ext.asyncio") or _is_async(connection):
        raise TypeError(f"{type(connection).__name__} is asynchronous: use aenqueue, or an AsyncJob")
    if _is_of(connection, "sqlalchemy") and hasattr(connection, "execute"):
        return _firsts(_sqlalchemy(connection.execute, statement, parameters).all())
    numbered = statement.format(*["%s"] * len(parameters))
    if hasattr(connection, "cursor"):
        with connection.cursor(**_plain_rows(connection)) as cursor:
            cursor.execute(numbered, list(parameters))
            return _firsts(cursor.fetchall())
    if hasattr(connection, "fetchall"):  # a cursor
        connection.execute(numbered, list(parameters))
        return _firsts(connection.fetchall())
    raise _unknown(connection)


async def aquery(connection: Any, statement: str, parameters: Sequence[Optional[str]]) -> List[Any]:
    """The same on a connection of asyncpg, an AsyncConnection of psycopg, or of SQLAlchemy's asyncio extension."""
    if _is_of(connection, "asyncpg"):
        numbered = statement.format(*(f"${number + 1}" for number in range(len(parameters))))
        return _firsts(await connection.fetch(numbered, *parameters))
    if _is_of(connection, "sqlalchemy.ext.asyncio") and hasattr(connection, "execute"):
        return _firsts((await _sqlalchemy(connection.execute, statement, parameters)).all())
    if hasattr(connection, "execute") and not _is_async(connection):
        raise TypeError(f"{type(connection).__name__} is not asynchronous: use enqueue, or a Job")
    if not _is_async(connection):
        raise _unknown(connection)
    numbered = statement.format(*["%s"] * len(parameters))
    if hasattr(connection, "cursor"):
        async with connection.cursor(**_plain_rows(connection)) as cursor:
            await cursor.execute(numbered, list(parameters))
            return _firsts(await cursor.fetchall())
    await connection.execute(numbered, list(parameters))
    return _firsts(await connection.fetchall())


def _is_async(connection: Any) -> bool:
    return _is_of(connection, "psycopg") and hasattr(connection, "__aenter__")


def _is_of(connection: Any, *packages: str) -> bool:
    """Whether its class, or one that it extends, is of a package: Flask and SQLModel have sessions of their own."""
    modules = [one.__module__ + "." for one in type(connection).__mro__]
    return any(module.startswith(package + ".") for module in modules for package in packages)


def _plain_rows(connection: Any) -> Any:
    if not _is_of(connection, "psycopg"):
        return {}
    from psycopg.rows import tuple_row

    return {"row_factory": tuple_row}


def _sqlalchemy(execute: Any, statement: str, parameters: Sequence[Optional[str]]) -> Any:
    from sqlalchemy import text

    named = text(statement.format(*(f":p{number}" for number in range(len(parameters)))))
    return execute(named, {f"p{number}": value for number, value in enumerate(parameters)})


def _firsts(rows: Sequence[Any]) -> List[Any]:
    # psycopg2 can be told to return dicts
    return [next(iter(row.values())) if isinstance(row, dict) else row[0] for row in rows]


def _unknown(connection: Any) -> TypeError:
    if isinstance(connection, str):
        return TypeError(
            "enqueue takes an open connection, not a URL: the job is stored in the connection's transaction"
        )
    if any(hasattr(connection, name) for name in ("connect", "connection", "begin")):  # an Engine, a ConnectionPool
        return TypeError(
            f"enqueue takes a connection with an open transaction, not {type(connection).__name__}: "
            "for example, with engine.begin() as connection"
        )
    return TypeError(
        f"{type(connection).__module__}.{type(connection).__name__} is not a connection that is known here; "
        "with another driver, run select bugle.enqueue_job($1::jsonb) with NewJob(…).to_json()"
    )
