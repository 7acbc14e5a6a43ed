"""The application: an order and its jobs are stored together, or not at all."""

import os

import psycopg

from bugle_jobs import enqueue


def place_order(connection, item, mail):
    """Store an order, and what has to be done about it, in the transaction of this connection."""
    (order,) = connection.execute("insert into shop_orders (item) values (%s) returning id", [item]).fetchone()
    enqueue(connection, "book_stock", {"order": order, "item": item})
    enqueue(connection, "send_receipt", {"order": order, "to": mail}, max_attempts=5, unique_key=f"receipt-{order}")
    return order


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute(
            "create table if not exists shop_orders ("
            "id bigint generated always as identity, item text, booked_at timestamptz)"
        )
        print(f"order {place_order(connection, 'tea', 'ada@example.org')} is placed")
