"""Django with the database of DATABASE_URL."""

import os
from urllib.parse import urlsplit

import django
from django.conf import settings

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    INSTALLED_APPS=["shop"],
    USE_TZ=True,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": url.hostname,
            "PORT": url.port,
            "USER": url.username,
            "PASSWORD": url.password,
            "NAME": url.path[1:],
            "DISABLE_SERVER_SIDE_CURSORS": True,
        }
    },
)
django.setup()
