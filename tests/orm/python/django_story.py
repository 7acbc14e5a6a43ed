import os
from urllib.parse import urlsplit

import django
from django.conf import settings

import story

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

from shop.orders import place_order  # noqa: E402

story.tell(place_order)
