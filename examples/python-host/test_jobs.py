"""Tests without a worker and without a database: python3 -m unittest"""

import unittest

from bugle_jobs import testing
from jobs import host
from shop import place_order


class Connection:
    """Stands for the database of the shop. What is enqueued goes to the sandbox."""

    def execute(self, statement, parameters):
        return self

    def fetchone(self):
        return (7,)


class ShopTest(unittest.TestCase):
    def test_an_order_is_booked_and_gets_a_receipt(self):
        with testing.Sandbox(host) as sandbox:
            place_order(Connection(), "tea", "ada@example.org")

        self.assertEqual([job.command for job in sandbox.jobs], ["book_stock", "send_receipt"])
        self.assertEqual(sandbox.jobs[0].payload, {"order": 7, "item": "tea"})

    def test_a_receipt_keeps_its_number_when_it_is_sent_again(self):
        sandbox = testing.Sandbox(host)
        job = sandbox.enqueue("send_receipt", {"order": 7, "to": "ada@example.org"})

        sandbox.drain()
        self.assertEqual((job.state, job.steps), ("retrying", {"number": "R-00007"}))
        sandbox.advance(1)
        sandbox.drain()
        self.assertEqual(job.result, {"receipt": "R-00007", "sent_to": "ada@example.org"})

    def test_what_is_not_an_address_is_not_tried_again(self):
        ran = testing.run(host, "send_receipt", {"order": 7, "to": "nobody"})

        self.assertEqual((ran.outcome, ran.code, ran.retryable), ("fail", "bad_address", False))


if __name__ == "__main__":
    unittest.main()
