"""Connecting Claude Code: what happens to the user's files."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import connect
from producer import errors
from producer.config import ProducerConfig
from producer.hosts import hook_config
from producer.scope import Scope

SCOPE = Scope(
    agent_id="claude-code",
    profile_id="default",
    privacy_scope="private",
    participant_scope_hash="a" * 64,
    sandbox_eligible=False,
)
OTHERS = {
    "model": "opus",
    "hooks": {
        "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "audit"}]}],
    },
    "permissions": {"allow": ["Bash(ls:*)"], "note": "größe"},
}


@pytest.fixture
def config(tmp_path: Path) -> ProducerConfig:
    return ProducerConfig(
        state_dir=tmp_path / "it's state",
        journal_dir=tmp_path / "journal",
        store_url="sqlite:////s",
        broker_url="redis://localhost",
        redis_url="redis://localhost",
        agent_socket=tmp_path / "agent.sock",
        scope_salt="secret salt",
        producer_key="secret key",
    )


def settings_file(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "settings.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_our_hooks_go_in_beside_others_and_come_out_again_without_a_trace(tmp_path, config):
    path = settings_file(tmp_path, OTHERS)
    report = connect.connect_claude_code(path, config, scope=SCOPE)
    settings = json.loads(path.read_text("utf-8"))
    assert report["changed"] and settings["model"] == "opus" and settings["permissions"] == OTHERS["permissions"]
    assert settings["hooks"]["PreToolUse"] == OTHERS["hooks"]["PreToolUse"]
    assert settings["hooks"]["Stop"][0] == OTHERS["hooks"]["Stop"][0]
    assert settings["hooks"]["SessionStart"][-1]["matcher"] == "compact"
    for event in ("UserPromptSubmit", "Stop", "SessionStart"):
        entry = settings["hooks"][event][-1]["hooks"][0]
        assert entry["type"] == "command" and entry["timeout"] == 5
        words = shlex.split(entry["command"])
        assert words[0] == f"MEMORY_HOOK_CONFIG={report['hookConfig']}" and words[1] == sys.executable
        assert Path(words[4]).is_file() and words[5] == "claude_code"
    assert json.loads(Path(report["backup"]).read_text("utf-8")) == OTHERS
    assert connect.disconnect_claude_code(path)["removed"] == 3
    assert json.loads(path.read_text("utf-8")) == OTHERS
    assert connect.disconnect_claude_code(path)["removed"] == 0


def test_connecting_twice_changes_nothing_and_a_moved_configuration_replaces_our_entry(tmp_path, config):
    path = settings_file(tmp_path, OTHERS)
    connect.connect_claude_code(path, config, scope=SCOPE)
    first = path.read_bytes()
    assert not connect.connect_claude_code(path, config, scope=SCOPE)["changed"]
    assert path.read_bytes() == first
    moved = connect.connect_claude_code(path, config, scope=SCOPE, config_path=tmp_path / "other.json")
    assert moved["changed"]
    settings = json.loads(path.read_text("utf-8"))
    assert len(settings["hooks"]["Stop"]) == 2 and "other.json" in settings["hooks"]["Stop"][1]["hooks"][0]["command"]
    assert json.loads(Path(moved["backup"]).read_text("utf-8")) == OTHERS  # the first copy stays


def test_the_hooks_configuration_is_private_complete_and_holds_no_secret(tmp_path, config):
    report = connect.connect_claude_code(tmp_path / "new" / "settings.json", config, scope=SCOPE)
    path = Path(report["hookConfig"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" not in path.read_text()
    read = hook_config.read(str(path))
    assert read.participant_scope_hash == "a" * 64 and read.journal_dir == str(config.journal_dir)
    assert read.recall_deadline_ms == config.recall_deadline_ms and not read.capture_unattended
    assert (tmp_path / "new" / "settings.json").stat().st_mode & 0o777 == 0o600 and report["backup"] is None


@pytest.mark.parametrize(
    "content",
    [
        "{broken",
        "[]",
        '"text"',
        '{"hooks": []}',
        '{"hooks": {"Stop": {}}}',
        '{"hooks": {"Stop": ["x"]}}',
        '{"hooks": {"Stop": [{"hooks": "x"}]}}',
        "[" * 100_000,
    ],
)
def test_settings_that_we_do_not_understand_are_refused_and_not_touched(tmp_path, config, content):
    path = settings_file(tmp_path, content)
    for call in (
        lambda: connect.connect_claude_code(path, config, scope=SCOPE),
        lambda: connect.disconnect_claude_code(path),
    ):
        with pytest.raises(errors.SettingsRefused, match=r"settings\.json"):
            call()
    assert path.read_text() == content and sorted(p.name for p in tmp_path.iterdir()) == ["settings.json"]


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path, config):
    (tmp_path / "blocked").write_text("a file, not a directory")
    with pytest.raises(errors.SettingsRefused):
        connect.connect_claude_code(tmp_path / "blocked" / "settings.json", config, scope=SCOPE)


def test_settings_that_are_a_link_stay_one(tmp_path, config):
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    link = tmp_path / "settings.json"
    link.symlink_to(real)
    connect.connect_claude_code(link, config, scope=SCOPE)
    assert link.is_symlink() and "hooks" in json.loads(real.read_text())
