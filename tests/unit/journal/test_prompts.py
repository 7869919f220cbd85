"""Prompts kept between UserPromptSubmit and Stop."""

from __future__ import annotations

import os
import resource
import signal
import stat
import threading
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


def test_a_prompt_saved_before_the_journal_is_there_leaves_no_directory_open_to_others(tmp_path: Path) -> None:
    prompts.save_prompt(tmp_path / "state" / "journal", "s", "p", "text")
    for path in (tmp_path / "state", tmp_path / "state" / "journal", tmp_path / "state" / "journal" / "prompts"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_reader_sees_a_whole_prompt_or_none_while_it_is_replaced(tmp_path: Path) -> None:
    texts = ["a" * 200_000, "b" * 200_000]
    prompts.save_prompt(tmp_path, "s", "p", texts[0])
    done = threading.Event()

    def write() -> None:
        for number in range(50):
            prompts.save_prompt(tmp_path, "s", "p", texts[number % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert prompts.take_prompt(tmp_path, "s", "p") in texts
    writer.join(10)


def test_a_prompt_that_cannot_be_written_leaves_the_earlier_one_and_no_draft(tmp_path: Path) -> None:
    prompts.save_prompt(tmp_path, "s", "p", "earlier")
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            prompts.save_prompt(tmp_path, "s", "p", "x" * 5000)
        except OSError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert prompts.take_prompt(tmp_path, "s", "p") == "earlier"
    assert len(list((tmp_path / "prompts").iterdir())) == 1
