import os

from sqlalchemy import create_engine

import story
from shop import place_order

url = os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://")
engine = create_engine(url, connect_args={"prepare_threshold": None} if "POOLED" in os.environ else {})
story.tell(lambda item, check_stock: place_order(engine, item, check_stock))
