"""Prompts kept between UserPromptSubmit and Stop."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from producer.journal import prompts
from tests.unit.journal.support import Clock


def test_a_saved_prompt_is_taken_by_the_same_ids_as_often_as_stop_comes(tmp_path: Path) -> None:
    text = "é\ud83d\u2028 and a NUL \0"
    prompts.save_prompt(tmp_path, "session", "prompt", text)
    assert prompts.take_prompt(tmp_path, "session", "prompt") == text
    assert prompts.take_prompt(tmp_path, "session", "prompt") == text
    assert prompts.take_prompt(tmp_path, "session", "other") is None
    assert prompts.take_prompt(tmp_path / "nowhere", "session", "prompt") is None


def test_ids_are_not_confused_and_stand_in_no_file_name(tmp_path: Path) -> None:
    prompts.save_prompt(tmp_path, "a:b", "c", "first")
    prompts.save_prompt(tmp_path, "a", "b:c", "second")
    prompts.save_prompt(tmp_path, "\ud800", "", "third")
    assert prompts.take_prompt(tmp_path, "a:b", "c") == "first"
    assert prompts.take_prompt(tmp_path, "a", "b:c") == "second"
    assert prompts.take_prompt(tmp_path, "\ud800", "") == "third"
    names = [path.name for path in (tmp_path / "prompts").iterdir()]
    assert all(len(name) == 64 and set(name) <= set("0123456789abcdef") for name in names)


def test_a_later_prompt_with_the_same_ids_replaces_the_earlier(tmp_path: Path) -> None:
    prompts.save_prompt(tmp_path, "s", "p", "a longer first one")
    prompts.save_prompt(tmp_path, "s", "p", "second")
    assert prompts.take_prompt(tmp_path, "s", "p") == "second"
    assert len(list((tmp_path / "prompts").iterdir())) == 1


def test_prompts_are_closed_to_others(tmp_path: Path) -> None:
    prompts.save_prompt(tmp_path / "journal", "s", "p", "text")
    folder = tmp_path / "journal" / "prompts"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


def test_prompts_live_for_a_day(tmp_path: Path) -> None:
    clock = Clock()
    prompts.save_prompt(tmp_path, "s", "old", "text")
    (old,) = (tmp_path / "prompts").iterdir()
    os.utime(old, (clock(), clock()))
    assert prompts.take_prompt(tmp_path, "s", "old", clock=clock) == "text"
    clock.advance(prompts.MAX_AGE_S + 1)
    assert prompts.take_prompt(tmp_path, "s", "old", clock=clock) is None
    prompts.save_prompt(tmp_path, "s", "new", "text", clock=clock)
    assert not old.exists()


def test_no_more_than_a_thousand_are_kept(tmp_path: Path) -> None:
    for number in range(prompts.MAX_FILES):
        (tmp_path / "prompts").mkdir(exist_ok=True)
        (tmp_path / "prompts" / f"{number:064x}").write_text("x")
    prompts.save_prompt(tmp_path, "s", "p", "text")
    assert len(list((tmp_path / "prompts").iterdir())) == prompts.MAX_FILES
    assert prompts.take_prompt(tmp_path, "s", "p") == "text"
