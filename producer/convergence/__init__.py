"""The rules of memory above the store port: how records converge without transactions.

There are two sorts of records, and both are only ever added to. *Content* never changes and never says whether it is
current. *Marks* say it, and never change either. Whoever touches an id looks at its content and its marks, folds
duplicates, and writes the verdict that follows. The last look, with nothing left to mend, is the receipt.

    driver      settles a batch of deliveries with few store calls     (the only one that calls a store)
    deliver     the rules of one delivery, as generators of `requests`
    content, marks, settle, rivals, graph, forget                       the rules, by what they are about
    reader      what a reader may show of what came back
"""
