"""The reliability harness: real processes under load, killed, frozen and cut off from each other, then counted once.

    python -m tests.faults [--seed N] [--list] [names…]     the table of all scenarios, or of these
    python -m tests.faults.soak --minutes 30 [--seed N]     one long load under random kills

`world` holds the processes, `proxy` stands between them, `count` says at the end what became of every acknowledged
event, `scenarios` are the named troubles. ops/reliability.md says what each proves.
"""
