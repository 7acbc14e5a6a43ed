#!/usr/bin/env python3
"""Enqueue in the transaction of the business: both are there, or neither. Needs psycopg 3.

    DATABASE_URL=postgres://app:secret@localhost/shop ./enqueue.py
"""
import os, time

import psycopg
from psycopg.types.json import Jsonb


class OutOfStock(Exception):
    def __init__(self, order, job):
        self.order, self.job = order, job


def place_order(connection, item, name, stock):
    """The order and the job that follows from it, in one transaction."""
    with connection.transaction():
        (order,) = connection.execute("insert into orders (item) values (%s) returning id", [item]).fetchone()
        (job,) = connection.execute(
            "insert into bugle.jobs (command, payload) values ('hello', %s) returning id", [Jsonb({"name": name, "order": order})]
        ).fetchone()
        if not stock:
            raise OutOfStock(order, job)  # rolls back
    return order, job


def end(connection, job):
    """Waits until a job has ended. It takes a worker that serves the command hello, such as that of "bugle dev"."""
    for _ in range(600):
        state, result = connection.execute("select state, result from bugle.job(%s)", [job]).fetchone()
        if state in ("completed", "failed", "cancelled"):
            return state, result
        time.sleep(0.05)
    raise SystemExit(f"job {job} has not ended after 30 seconds: does a worker serve the command hello?")


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
    connection.execute("create table if not exists orders (id bigint generated always as identity, item text not null)")

    order, kept = place_order(connection, "tea", "Ada", stock=1)
    print(f"order {order} and job {kept} are committed")

    try:
        place_order(connection, "coffee", "Bob", stock=0)
    except OutOfStock as undone:
        if connection.execute("select from bugle.job(%s)", [undone.job]).fetchone():
            raise SystemExit(f"job {undone.job} is there, though its transaction was rolled back")
        print(f"order {undone.order} was rolled back, and job {undone.job} with it")

    state, result = end(connection, kept)
    print(f"job {kept} is {state}: {result}")
    if state != "completed":
        raise SystemExit(1)
