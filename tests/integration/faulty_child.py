"""A worker's child with the store of `faulty_store`."""

from __future__ import annotations

import sys

from memory_tasks import poison_child
from tests.integration import faulty_store

if __name__ == "__main__":
    poison_child.main(sys.argv[1:], open_store=faulty_store.open_store)
