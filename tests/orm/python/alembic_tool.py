"""Compare the models with the database, as `alembic revision --autogenerate` does."""

import os

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from leave_bugle_alone import include_name, include_object
from shop import Base

engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"))


def changes(connection, **options):
    options["target_metadata"] = Base.metadata
    return compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)


with engine.connect() as connection:
    for schemas in [False, True]:
        assert changes(connection, include_schemas=schemas), "there is nothing to leave alone"
        filters = {"include_name": include_name, "include_object": include_object}
        print(changes(connection, include_schemas=schemas, **filters))
