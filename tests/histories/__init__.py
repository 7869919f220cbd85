"""Random histories through real workers, against a dictionary.

    python -m tests.histories --seed 1 --runs 20

A history is a set of journal lines. It is delivered in many orders, each in scopes of its own: every order when it has
few lines, random ones and at once when it has many. What the store holds in the end is compared with `model`, which
knows the set of lines and nothing of their order.

    saying    one line, opened for the model, and who writes them
    history   random histories
    model     what must be there in the end
    world     a store, Redis and workers as processes
    runner    orders under way: publish, take receipts, publish again
    verdict   what is there, and what differs
"""
