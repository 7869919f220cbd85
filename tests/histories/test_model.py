"""The model says what a reader of the promises would say, of histories small enough to be judged by eye."""

from __future__ import annotations

import itertools

from tests.histories import history
from tests.histories.model import Expected, expected
from tests.histories.saying import Said, Writer, scopes_of

ours, theirs = (Writer(scope) for scope in scopes_of("test", 0))


def of_ours(*said: Said) -> Expected:
    """What our scope must hold; of a function of the set, in whatever order it is told."""
    told = [expected(order)[ours.key] for order in itertools.permutations(said)]
    assert all(one == told[0] for one in told)
    return told[0]


def current(told: Expected) -> set[str]:
    return {id_ for (_, id_, _), is_current in told.contents.items() if is_current}


def fact(text: str, at: float, **more: str) -> Said:
    return ours.fact(text, source=f"write of {text}", at=at, **more)


def test_of_two_rivals_the_later_is_current_and_both_stay() -> None:
    old = fact("tea", 0)
    one, other = (fact(text, at, supersedes_fact_id=old.id) for text, at in (("coffee", 1), ("milk", 2)))
    told = of_ours(old, one, other)
    assert current(told) == {other.id}
    assert len(told.contents) == 3
    assert {edge[0] for edge in told.edges} == {"SUPERSEDES"} and len(told.edges) == 2


def test_who_superseded_a_loser_competes_with_the_winner() -> None:
    old = fact("tea", 0)
    loser, winner = (fact(text, at, supersedes_fact_id=old.id) for text, at in (("coffee", 1), ("milk", 2)))
    assert current(of_ours(old, loser, winner, fact("late", 3, supersedes_fact_id=loser.id))) != {winner.id}
    assert current(of_ours(old, loser, winner, fact("early", 1.5, supersedes_fact_id=loser.id))) == {winner.id}


def test_forgetting_the_current_fact_revives_none() -> None:
    old = fact("tea", 0)
    new = fact("coffee", 1, supersedes_fact_id=old.id)
    told = of_ours(old, new, ours.forget(new.id, at=2))
    assert current(told) == set() and [id_ for _, id_, _ in told.contents] == [old.id]


def test_a_neighbours_word_counts_for_nothing() -> None:
    mine = fact("tea", 0)
    others = (theirs.fact("coffee", source="x", at=9, supersedes_fact_id=mine.id), theirs.retract(mine.id, at=9))
    assert current(of_ours(mine, *others, theirs.forget(mine.id, at=9))) == {mine.id}


def test_of_other_content_under_one_id_the_smaller_hash_stands_and_it_is_told() -> None:
    told = of_ours(fact("tea", 0), fact("tea", 0, trust_class="untrusted"))
    assert sorted(told.contents.values()) == [False, True]
    assert min(told.contents) == next(content for content, is_current in told.contents.items() if is_current)
    assert told.codes == {"conflict": 1}


def test_a_forgotten_session_takes_its_turns_and_the_facts_said_in_it() -> None:
    turn = ours.turn("hello", source="1", at=0, session="s1")
    told = of_ours(
        turn, fact("tea", 0, session="s1"), fact("home", 0), ours.forget({"session": turn.session_key}, at=1)
    )
    assert [label for label, _, _ in told.contents] == ["MEMORY_FACT"]
    assert told.no_sessions == {turn.session_key}


def test_the_latest_version_of_a_thing_is_current_and_all_are_linked() -> None:
    versions = [ours.thing("ann", n, label="ENTITY", source=f"{n}", at=n) for n in range(2)]
    mine = fact("tea", 0)
    told = of_ours(
        *versions, mine, ours.link(("MEMORY_FACT", mine.id), ("ENTITY", ours.key_of_thing("ann", "ENTITY")), at=0)
    )
    assert sorted(told.contents.values()) == [False, True, True]
    assert len(told.edges) == 2


def test_the_same_seed_writes_the_same_history_in_any_scope() -> None:
    for seed in range(20):
        one, other = (history.write(seed, "test", number) for number in (1, 2))
        assert [(said.what, len(said.text)) for said in one] == [(said.what, len(said.text)) for said in other]
        assert not {said.hash for said in one} & {said.hash for said in other}
