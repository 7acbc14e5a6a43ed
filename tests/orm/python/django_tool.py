"""Make the migrations of the models and apply them, to a database that has none of them."""

from django.core.management import call_command

import configure  # noqa: F401

call_command("makemigrations", "shop", verbosity=0)
call_command("migrate", verbosity=0)
