"""What a worker runs: it starts this program, as bugle.toml says."""

import os
from dataclasses import dataclass

import psycopg

from bugle_jobs import AsyncJob, Fail, Host, Job

host = Host()


@dataclass
class Booking:
    order: int
    item: str


@host.on("book_stock")
def book_stock(job: Job, booking: Booking):
    # the booking and the completion of the job are one transaction: run twice, booked once
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute("update shop_orders set booked_at = now() where id = %s", [booking.order])
        job.complete_in(connection, {"booked": booking.item})


@host.on("send_receipt")
async def send_receipt(job: AsyncJob, order: int, to: str):
    if "@" not in to:
        raise Fail(f"{to} is not an address", code="bad_address", retryable=False)
    number = await job.step("number", lambda: next_number(order))  # the same in each attempt
    if job.attempt == 1:
        raise Fail("the mail server is busy", retry_after=1)
    return {"receipt": number, "sent_to": to}


async def next_number(order: int) -> str:
    return f"R-{order:05}"


if __name__ == "__main__":
    host.run()
