"""Relevance without a store."""

from __future__ import annotations

from producer.recall import ranking


def test_the_text_that_says_more_of_the_query_ranks_higher():
    texts = ["I use the Helix editor", "The weather is fine", "Helix is a shape"]
    scores = ranking.relevance("Which Helix editor do I use?", texts)
    assert scores[0] > scores[2] > scores[1] == 0


def test_scores_lie_between_nothing_and_everything():
    assert all(0 <= s <= 1 for s in ranking.relevance("a b c d", ["a b c d " * 50, "x", ""]))
    assert ranking.relevance("word", ["word " * 100])[0] > 0.9


def test_a_query_without_words_and_no_texts_are_no_error():
    assert ranking.relevance("?!\ud83d", ["anything"]) == [0.0]
    assert ranking.relevance("word", []) == []


def test_common_words_alone_do_not_make_a_text_relevant():
    scores = ranking.relevance("what is the name of my dog", ["this is the way of the world", "my dog barks"])
    assert scores[0] == 0 < scores[1]


def test_endings_and_scripts_without_spaces_are_understood():
    assert ranking.relevance("editors", ["an editor"])[0] > 0
    assert ranking.relevance("東京に住んで", ["私は東京に住んでいます"])[0] > 0
    assert ranking.relevance("大阪", ["私は東京に住んでいます"])[0] == 0
