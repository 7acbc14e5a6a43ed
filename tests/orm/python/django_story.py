import configure  # noqa: F401
import story
from shop.orders import place_order

story.tell(place_order)
