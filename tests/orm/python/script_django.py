"""Apply the migrations of the page."""

from django.core.management import call_command

import configure  # noqa: F401

call_command("migrate", verbosity=0)
