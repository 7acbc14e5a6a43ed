"""Apply the migration of the page as `alembic upgrade` does: in one transaction with Alembic's own table."""

import importlib.util
import os

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import create_engine, text

spec = importlib.util.spec_from_file_location("bugle_1", os.path.join(os.path.dirname(__file__), "versions/bugle_1.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

engine = create_engine(os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"))
with engine.begin() as connection:
    context = MigrationContext.configure(connection)
    context._ensure_version_table()
    with Operations.context(context):
        module.upgrade()
    connection.execute(text("insert into alembic_version values ('bugle_1')"))
