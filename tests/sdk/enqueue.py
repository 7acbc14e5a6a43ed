"""With every driver: what is enqueued is there if the transaction commits, and not if it rolls back."""

import asyncio
import contextlib
import json
import os
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bugle_jobs import NewJob, Options, aenqueue, aenqueue_many, enqueue, enqueue_many
from bugle_jobs.testing import aassert_enqueued, assert_enqueued

URL = os.environ["DATABASE_URL"]
OWNER = psycopg.connect(os.environ["OWNER_URL"], autocommit=True)
ALCHEMY = URL.replace("postgresql://", "postgresql+psycopg://")
PARTS = urlsplit(URL)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": PARTS.hostname,
            "PORT": PARTS.port,
            "USER": PARTS.username,
            "PASSWORD": PARTS.password,
            "NAME": PARTS.path[1:],
        }
    }
)
django.setup()


class Undo(Exception):
    pass


def check(driver, story):
    """What a driver has committed, and nothing else, is in the database."""
    OWNER.execute("delete from bugle.jobs_live")
    story()
    rows = OWNER.execute("select command, payload, queue, unique_key from bugle.jobs order by id").fetchall()
    one = ("ship", {"order": driver}, "default", None)
    many = [("ship", {"order": number}, "slow" if number % 2 else "default", None) for number in range(3)]
    keyed = ("ship", {"order": "it's \\ \"1\" % :x $1"}, "default", "key")
    assert rows == [one, *many, keyed], f"{driver}: {rows}"
    print(driver)


MANY = [NewJob("ship", {"order": number}, **({"queue": "slow"} if number % 2 else {})) for number in range(3)]
KEYED = NewJob("ship", {"order": "it's \\ \"1\" % :x $1"}, unique_key="key")


def use(connection, driver):
    id = enqueue(connection, "ship", {"order": driver})
    ids = enqueue_many(connection, MANY)
    assert ids == [id + 1, id + 2, id + 3], (id, ids)
    first, again = enqueue_many(connection, [KEYED, KEYED])
    assert first == again == enqueue(connection, KEYED)


async def ause(connection, driver):
    id = await aenqueue(connection, "ship", {"order": driver})
    ids = await aenqueue_many(connection, MANY)
    assert ids == [id + 1, id + 2, id + 3], (id, ids)
    first, again = await aenqueue_many(connection, [KEYED, KEYED])
    assert first == again == await aenqueue(connection, KEYED)


def twice(driver, transaction):
    """A transaction that is rolled back, and one that is not."""

    def story():
        for undo in (True, False):
            try:
                with transaction() as connection:
                    use(connection, driver)
                    if undo:
                        raise Undo
            except Undo:
                pass

    check(driver, story)


def twice_async(driver, transaction):
    async def story():
        for undo in (True, False):
            try:
                await transaction(driver, undo)
            except Undo:
                pass

    check(driver, lambda: asyncio.run(story()))


twice("psycopg", lambda: psycopg.connect(URL))
twice("psycopg with rows as dicts", lambda: psycopg.connect(URL, row_factory=dict_row))
engine = sqlalchemy.create_engine(ALCHEMY)
twice("SQLAlchemy connection", engine.begin)


@contextlib.contextmanager
def session():
    with Session(engine) as opened, opened.begin():
        yield opened


@contextlib.contextmanager
def in_django():
    with transaction.atomic():
        yield connections["default"]


twice("SQLAlchemy session", session)


twice("Django", in_django)


async def with_psycopg(driver, undo):
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        await ause(connection, driver)
        if undo:
            raise Undo


async def with_asyncpg(driver, undo):
    connection = await asyncpg.connect(URL)
    try:
        # as many applications do: it must not be encoded twice
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        async with connection.transaction():
            await ause(connection, driver)
            if undo:
                raise Undo
    finally:
        await connection.close()


async def with_sqlalchemy(driver, undo):
    asynchronous = create_async_engine(ALCHEMY)
    async with AsyncSession(asynchronous) as opened, opened.begin():
        await ause(opened, driver)
        if undo:
            raise Undo
    await asynchronous.dispose()


twice_async("psycopg, asynchronous", with_psycopg)
twice_async("asyncpg", with_asyncpg)
twice_async("SQLAlchemy, asynchronous", with_sqlalchemy)

# every column of bugle.jobs that may be set is an option, and the other way round
columns = OWNER.execute("select bugle.settable_columns()").fetchone()[0]
expected = {*columns, "delay", "after", "on_conflict"} - {"command", "payload"}
assert set(Options.__annotations__) == expected, set(Options.__annotations__) ^ expected

at = datetime.now(timezone.utc) + timedelta(hours=1)
options = {
    "priority": -5,
    "run_at": at,
    "deadline": at + timedelta(hours=1),
    "timeout": timedelta(minutes=5),
    "max_attempts": 3,
    "retry_policy": "fixed",
    "retry_delay": 1.5,
    "headers": {"tenant": "a"},
    "order_key": "o",
    "limit_key": "l",
    "fair_key": "f",
    "on_success": "thank",
    "on_failure": "apologise",
}
names = list(options)
with psycopg.connect(URL) as connection:
    ids = [enqueue(connection, "ship", {}, **options), *enqueue_many(connection, [NewJob("ship", {}, **options)])]
    waits = enqueue(connection, "ship", None, after=ids, idempotency_key="m", idempotency_ttl=60, delay=2)
    chain = enqueue(connection, "order", {}, steps=["fetch", "ship"])
rows = OWNER.execute(f"select {', '.join(names)} from bugle.jobs where id = any (%s)", [ids]).fetchall()
given = tuple(timedelta(seconds=1.5) if name == "retry_delay" else options[name] for name in names)
assert rows == [given, given], rows
found = OWNER.execute("select state, payload from bugle.jobs where id = %s", [waits]).fetchone()
assert found == ("waiting", None), found
assert OWNER.execute("select steps from bugle.jobs where id = %s", [chain]).fetchone()[0] == ["fetch", "ship"]
print("options")

# a test asks for what its transaction has enqueued
mail = NewJob("mail", {"to": [{"name": "ada"}], "n": 1}, queue="slow", delay=60, **{**options, "run_at": None})
WANTED = {"queue": "slow", "timeout": 300, "headers": {"tenant": "a"}, "deadline": at + timedelta(hours=1), "delay": 60}


with contextlib.suppress(Undo), OWNER.transaction():
    enqueue(OWNER, "mail", None)
    enqueue(OWNER, mail)
    found = assert_enqueued(OWNER, "mail", {"to": [{"name": "ada"}]}, **WANTED)
    assert (found.payload, found.options["timeout"]) == (mail.payload, "00:05:00"), found
    assert assert_enqueued(OWNER, "mail", None).payload is None
    for command, payload, wanted in [
        ("mail", {"to": [{"name": "eve"}]}, {}),
        ("mail", {"n": True}, {}),
        ("mail", {}, {"timeout": 301}),
        ("mail", {}, {"delay": 90}),
        ("mial", {}, {}),
    ]:
        try:
            assert_enqueued(OWNER, command, payload, **wanted)
        except AssertionError as error:
            assert "is not enqueued; enqueued are:\n  NewJob('" in str(error), error
        else:
            raise RuntimeError(f"found {command} {payload} {wanted}")
    raise Undo


async def ask():
    async with await psycopg.AsyncConnection.connect(os.environ["OWNER_URL"]) as connection:
        await aenqueue(connection, mail)
        await aassert_enqueued(connection, "mail", {"n": 1}, **WANTED)
        await connection.rollback()
    connection = await asyncpg.connect(os.environ["OWNER_URL"])
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    transaction = connection.transaction()
    await transaction.start()
    await aenqueue(connection, mail)
    await aassert_enqueued(connection, "mail", {"n": 1}, **WANTED)
    await transaction.rollback()
    await connection.close()


asyncio.run(ask())
owners = os.environ["OWNER_URL"].replace("postgresql://", "postgresql+psycopg://")
with sqlalchemy.create_engine(owners).begin() as opened:
    enqueue(opened, mail)
    assert_enqueued(opened, "mail", {"n": 1}, **WANTED)
    opened.rollback()
print("asserted")

# what is not a connection is said, with the real ones
for wrong in (engine, URL, sqlalchemy.orm.sessionmaker(engine)):
    try:
        enqueue(wrong, "ship")
    except TypeError as error:
        assert "takes a" in str(error), error
    else:
        raise RuntimeError(wrong)
