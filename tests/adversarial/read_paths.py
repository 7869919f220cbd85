"""Every place outside the store, its rules and the journal that reads what was captured: who may ask, what holds it.

A function stands here under `module:qualified name`, with what it calls to read. `test_read_paths` walks the source and
fails for a call that is in no table: whoever adds a read path says here whose records it may return, and adds it to the
scope matrix (`test_scope_matrix`) if it takes a scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["NO_RECORDS", "READING_CALLS", "READ_PATHS", "ReadPath"]

# Attributes that read records, lines or entries when they are called. Strings and files have some of these names too.
READING_CALLS = frozenset(
    {
        *("find", "search", "edges", "edges_into", "with_vectors"),  # of the store
        "check",  # of the convergence: whatever its wheres let through
        *("scan", "scan_segment", "pieces", "line", "take_prompt"),  # of the journal
        *("hget", "hgetall", "hmget", "hvals", "lrange", "lindex", "lpop", "mget", "zrange", "zrevrange", "zpopmin"),
    }
)

Holder = Literal["five fields", "scope key and signature", "scope key, then five fields", "marks", "worker", "operator"]


@dataclass(frozen=True, kw_only=True)
class ReadPath:
    what: str
    held_by: Holder


# "five fields": the where comes from `producer.recall.where.within`.
READ_PATHS: dict[tuple[str, str], ReadPath] = {
    ("producer.recall.engine:Recall._by_search", "search"): ReadPath(
        what="keyword, vector and hybrid search", held_by="five fields"
    ),
    ("producer.recall.engine:Recall._by_scan", "find"): ReadPath(
        what="newest records, ranked here where the store has no search", held_by="five fields"
    ),
    ("producer.recall.engine:Recall._recall", "find"): ReadPath(
        what="facts by id: what the store says of recent ones, and marks on those and on the host's own lines",
        held_by="five fields",
    ),
    ("producer.recall.standing:standing", "find"): ReadPath(
        what="our content by id, and marks, for records of another adapter", held_by="five fields"
    ),
    ("producer.recall.history:_pages", "find"): ReadPath(
        what="one memory by id, and a fact's versions", held_by="five fields"
    ),
    ("producer.recall.recent:RecentWrites.read", "hgetall"): ReadPath(
        what="recent writes", held_by="scope key and signature"
    ),
    ("producer.recall.tail:JournalTail._read", "pieces"): ReadPath(
        what="the host's own unsettled lines", held_by="scope key, then five fields"
    ),
    ("producer.hosts.claude_code:_after_turn", "take_prompt"): ReadPath(
        what="the prompt of this session and prompt id, which its own hook saved", held_by="operator"
    ),
    ("producer.forgotten_lines:ForgottenLines._covered", "scan_segment"): ReadPath(
        what="lines of this host's journal that an order covers: they are given up, nothing is returned",
        held_by="marks",
    ),
    ("memory_tasks.forget_survey:survey", "find"): ReadPath(
        what="how many SESSIONs an order to forget names", held_by="operator"
    ),
    ("memory_tasks.forget_survey:_pages", "find"): ReadPath(
        what="what an order to forget names: of a scope by the order's own where, everywhere for operators; ids and "
        "times, texts with `forget --content` only",
        held_by="operator",
    ),
    ("memory_tasks.cli:_state_of", "scan"): ReadPath(
        what="what became of the line just written: state and reason, no content", held_by="operator"
    ),
    ("memory_tasks.forget_survey:Here._covered", "scan"): ReadPath(
        what="the same of this host's journal", held_by="operator"
    ),
    ("memory_tasks.checking:_marks", "find"): ReadPath(what="forgotten marks of dead lines", held_by="marks"),
    ("memory_tasks.expiry:Expiry.look", "find"): ReadPath(what="expired facts, for `--dry-run`", held_by="operator"),
    ("memory_tasks.expiry:Expiry._removed", "find"): ReadPath(what="expired facts, to remove them", held_by="worker"),
    ("memory_tasks.expiry:_all", "find"): ReadPath(what="all content of the ids of these", held_by="worker"),
    ("memory_tasks.shared_store:SharedStore.find", "find"): ReadPath(what="looks of deliveries", held_by="worker"),
    ("memory_tasks.shared_store:SharedStore._find", "find"): ReadPath(what="looks, joined", held_by="worker"),
    ("memory_tasks.shared_store:SharedStore.search", "search"): ReadPath(what="passed on", held_by="worker"),
    ("memory_tasks.shared_store:SharedStore.with_vectors.ask", "with_vectors"): ReadPath(
        what="record ids that have vectors", held_by="worker"
    ),
    ("memory_tasks.operator_commands:show_command", "line"): ReadPath(
        what="a dead line of this host's journal, printed with `show --content` only", held_by="operator"
    ),
    ("memory_tasks.dead_letters:read", "zrevrange"): ReadPath(
        what="the listing: ids and codes, no content, one tenant's", held_by="operator"
    ),
    ("memory_tasks.dead_letters:read", "hmget"): ReadPath(
        what="the listing: ids and codes, no content, one tenant's", held_by="operator"
    ),
    ("memory_tasks.fact_commands:check_command", "check"): ReadPath(
        what="ids and codes of what is amiss in a scope; of all scopes with --everywhere", held_by="five fields"
    ),
    ("memory_tasks.demo:_find", "find"): ReadPath(what="the demo's own records, in its own store", held_by="operator"),
}

# The same names, but nothing captured comes from there.
NO_RECORDS: dict[tuple[str, str], str] = {
    ("producer.recall.formatting:_without", "find"): "a string",
    ("producer.recall.formatting:_end_of_our_block", "find"): "a string",
    ("producer.rabbitmq:_named", "search"): "a string",
    ("producer.recall.tail:_is_of_a_later_version", "pieces"): "what the header of a segment says",
    ("producer.receipt_source:RedisReceipts.pop", "lpop"): "receipts: hashes and states",
    ("memory_tasks.settings:Settings.load", "check"): "settings",
    ("memory_tasks.app:_RefusesEviction.start", "check"): "how Redis is set up",
    ("memory_tasks.counts:_read", "hgetall"): "numbers",
    ("memory_tasks.lease:Lease.take", "hgetall"): "what workers say of themselves",
    ("memory_tasks.dead_letters:trim", "zpopmin"): "line hashes",
    ("memory_tasks.troubles:trim", "zpopmin"): "line hashes",
    ("memory_tasks.troubles:ask", "hmget"): "ids and codes",
    ("memory_tasks.troubles:read", "zrevrange"): "ids and codes",
    ("memory_tasks.troubles:read", "hmget"): "ids and codes",
}
