"""What an adversary may try, and what must hold against it: run by `make test`, the long ones by `make test-all`.

Each claim of `ops/THREATS.md` names a test, most of them here.
"""
