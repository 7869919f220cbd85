"""F30: hooks that went off without a word. Each thing that can break is broken alone; `doctor` says so in one line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memory_tasks import connect, doctor, hook_checks
from producer import config
from producer.hosts import launch
from producer.scope import Scope

SCOPE = Scope(
    agent_id="claude-code",
    profile_id="default",
    privacy_scope="private",
    participant_scope_hash="a" * 64,
    sandbox_eligible=False,
)


class Host:
    def __init__(self, directory: Path) -> None:
        self.environ = {"MEMORY_STATE_DIR": str(directory / "state")}
        self.config = config.load(self.environ)
        self.settings = directory / "settings.json"
        connect.connect_claude_code(self.settings, self.config, scope=SCOPE)

    def fire(self, event: str, **given: Any) -> None:
        """As Claude Code does, with whatever command its settings name; silent, whatever is broken."""
        hooks = json.loads(self.settings.read_text())["hooks"]
        for command in [entry["command"] for group in hooks.get(event, []) for entry in group["hooks"]]:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                input=json.dumps({"hook_event_name": event, "session_id": "s", "prompt_id": "p", **given}).encode(),
                capture_output=True,
                env={"PATH": os.environ["PATH"], "CLAUDE_CODE_ENTRYPOINT": "cli"},
                timeout=60,
            )
            assert done.stdout == b""

    def change_settings(self, change: Callable[[dict[str, Any]], None]) -> None:
        value = json.loads(self.settings.read_text())
        change(value)
        self.settings.write_text(json.dumps(value))

    def change_command(self, old: str, new: str) -> None:
        self.settings.write_text(self.settings.read_text().replace(old, new))

    def change_configuration(self, **changes: Any) -> None:
        path = connect.hook_config_path(self.config)
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def checks(self) -> list[doctor.Check]:
        return [check for check in doctor.examine(self.environ) if check.name == "claude code hooks"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_hooks_that_work_are_told_with_what_they_saw(host: Host) -> None:
    host.fire("UserPromptSubmit", prompt="where is the heron?")
    host.fire("Stop", last_assistant_message="in the reeds")
    host.fire("Stop", last_assistant_message="", prompt_id="q")
    (check,) = host.checks()
    assert (check.level, check.found) == ("ok", "2 turns seen, 1 captured; `status` tells refusals by reason")


def lonely_launcher(host: Host) -> None:
    """The package beside the launcher is gone, as after an uninstall that left a directory."""
    copy = host.settings.parent / "gone" / "producer" / "hosts" / "launch.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(Path(launch.__file__).read_bytes())
    host.change_command(str(Path(launch.__file__).absolute()), str(copy))


BREAKAGES: dict[str, tuple[Callable[[Host], None], str]] = {
    "import": (lonely_launcher, "the package that the hooks import is broken or gone"),
    "interpreter": (lambda h: h.change_command(" -I -S ", "-gone -I -S "), "interpreter does not start"),
    "hook name": (
        lambda h: h.change_settings(lambda v: v["hooks"].update(Stopp=v["hooks"].pop("Stop"))),
        "names no hook of ours for Stop",
    ),
    "older connection": (lambda h: h.change_settings(lambda v: v["hooks"].pop("SessionStart")), "SessionStart"),
    "host permission": (lambda h: h.change_settings(lambda v: v.update(disableAllHooks=True)), "disableAllHooks"),
    "settings": (lambda h: h.settings.write_text("{"), "cannot be read"),
    "settings gone": (lambda h: h.settings.unlink(), "cannot be read"),
    "configuration": (lambda h: connect.hook_config_path(h.config).write_text("{"), "every hook refuses"),
    "scope": (lambda h: h.change_configuration(participant_scope_hash="maya"), "every hook refuses"),
    "another journal": (lambda h: h.change_configuration(journal_dir="/elsewhere"), "another journal"),
    "another configuration": (
        lambda h: h.change_command("hooks/claude-code.json", "hooks/other.json"),
        "read another configuration",
    ),
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_whatever_turns_hooks_off_is_one_line_of_doctor_that_fails(host: Host, what: str) -> None:
    break_it, line = BREAKAGES[what]
    break_it(host)
    checks = host.checks()
    assert [check.level for check in checks] == ["fail"] * len(checks) and checks
    (told,) = [check for check in checks if line in check.found]
    assert told.todo and "\n" not in told.found


def test_a_machine_without_hooks_is_told_nothing_about_them(tmp_path: Path, host: Host) -> None:
    nobody = config.load({"MEMORY_STATE_DIR": str(tmp_path / "another")})
    assert hook_checks.faults(nobody) is None
    connect.disconnect_claude_code(host.settings, config_path=connect.hook_config_path(host.config))
    assert hook_checks.faults(host.config) is None
    assert json.loads(host.settings.read_text()) == {}


def test_taking_hooks_out_of_other_settings_leaves_this_configuration(tmp_path: Path, host: Host) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    connect.disconnect_claude_code(other, config_path=connect.hook_config_path(host.config))
    assert hook_checks.faults(host.config) == []
