"""An order of coffee is refused after both rows were inserted; orders of tea are placed."""

import os


class OutOfStock(Exception):
    pass


def check_stock(item):
    if item == "coffee":
        raise OutOfStock(item)


def tell(place_order):
    try:
        place_order("coffee", check_stock)
    except OutOfStock:
        print("rolled back")
    for _ in range(int(os.environ.get("ROUNDS", "1"))):
        print("committed", *place_order("tea", check_stock))
