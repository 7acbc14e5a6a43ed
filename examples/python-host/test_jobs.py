"""Tests without a worker and without a database: python3 -m unittest"""

import unittest
from unittest import mock

from bugle_jobs import testing
from jobs import host
from shop import place_order


class Connection:
    """Stands for the database of the shop. What is enqueued goes to the sandbox."""

    def __init__(self):
        self.executed = []

    def execute(self, statement, parameters):
        self.executed.append((statement.split()[0], parameters))
        return self

    def fetchone(self):
        return (7,)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class ShopTest(unittest.TestCase):
    def test_an_order_is_booked_and_gets_a_receipt(self):
        with testing.Sandbox(host) as sandbox:
            place_order(Connection(), "tea", "ada@example.org")

        self.assertEqual([job.command for job in sandbox.jobs], ["book_stock", "send_receipt"])
        self.assertEqual(sandbox.jobs[0].payload, {"order": 7, "item": "tea"})

    def test_a_booking_and_the_completion_of_its_job_are_one_transaction(self):
        database = Connection()
        with mock.patch.dict("os.environ", DATABASE_URL=""), mock.patch("psycopg.connect", return_value=database):
            ran = testing.run(host, "book_stock", {"order": 7, "item": "tea"})

        self.assertEqual(database.executed, [("update", [7])])
        # completed in the transaction: complete_in noted it, and ran no statement of its own
        self.assertEqual((ran.outcome, ran.result), ("settled", {"booked": "tea"}))

    def test_a_receipt_keeps_its_number_when_it_is_sent_again(self):
        sandbox = testing.Sandbox(host)
        job = sandbox.enqueue("send_receipt", {"order": 7, "to": "ada@example.org"})

        sandbox.drain()
        self.assertEqual((job.state, job.steps), ("retrying", {"number": "R-00007"}))
        sandbox.advance(1)
        sandbox.drain()
        self.assertEqual(job.result, {"receipt": "R-00007", "sent_to": "ada@example.org"})

    def test_an_invalid_address_is_not_tried_again(self):
        ran = testing.run(host, "send_receipt", {"order": 7, "to": "nobody"})

        self.assertEqual((ran.outcome, ran.code, ran.retryable), ("fail", "bad_address", False))


if __name__ == "__main__":
    unittest.main()
