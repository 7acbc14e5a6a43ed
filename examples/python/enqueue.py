#!/usr/bin/env python3
"""Enqueue in the transaction of the business: both are there, or neither. Needs psycopg 3.

    DATABASE_URL=postgres://app@localhost/shop ./enqueue.py
"""
import os

import psycopg
from psycopg.types.json import Jsonb

with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    connection.execute("create temp table orders (id int, item text)")

    with connection.transaction():
        connection.execute("insert into orders values (1, 'tea')")
        (kept,) = connection.execute(
            "insert into bugle.jobs (command, payload) values ('greet', %s) returning id", [Jsonb({"name": "Ada"})]
        ).fetchone()

    try:
        with connection.transaction():
            connection.execute("insert into orders values (2, 'coffee')")
            connection.execute("insert into bugle.jobs (command, payload) values ('greet', %s)", [Jsonb({"name": "nobody"})])
            raise RuntimeError("out of coffee")
    except RuntimeError:
        pass  # neither the order nor the job is there

print(kept)
