"""A program that is started for each job."""

import json
import sys

json.load(sys.stdin)
