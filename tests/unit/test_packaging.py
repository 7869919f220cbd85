"""What is shipped: ranges, lock file, light imports, and that the documents say what the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ops import settings_table

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
BESIDE_US = {"tenacity": "9.1.4", "pydantic": "2.13.4", "httpx": "0.28.1", "urllib3": "2.7.0"}  # Hermes 0.19.0


def locked(path: str = "requirements.lock") -> dict[str, str]:
    text = (ROOT / path).read_text("ascii")
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+) (?:; .*)?\\$", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def closure(roots: list[str]) -> Iterator[Requirement]:
    """What these requirements ask for, and what those ask for, as the installed packages say."""
    todo, seen = [Requirement(root) for root in roots], set()
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        yield requirement
        for text in metadata.requires(requirement.name) or ():
            inner = Requirement(text)
            extras = requirement.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(inner)


# -- dependencies ----------------------------------------------------------------------------------------------------


def test_an_agent_host_can_install_us_beside_what_hermes_pins():
    for requirement in closure(PROJECT["dependencies"] + EXTRAS["worker"]):
        pin = BESIDE_US.get(canonicalize_name(requirement.name))
        assert pin is None or requirement.specifier.contains(pin), requirement
    assert "httpx" not in {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}


def test_the_celery_that_dies_with_redis_is_refused():
    (celery,) = (r for r in map(Requirement, EXTRAS["worker"]) if r.name == "celery")
    admitted = {v for v in ("5.6.2", "5.6.3", "5.7.0", "5.7.1", "5.8.0") if celery.specifier.contains(v)}
    assert admitted == {"5.6.3", "5.7.1"}


def test_the_lock_file_holds_an_admitted_version_of_everything_and_no_place():
    pins = locked()
    everything = PROJECT["dependencies"] + [text for extra in EXTRAS.values() for text in extra]
    for requirement in closure(everything):
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{requirement} is not in requirements.lock"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{requirement} against {pins[name]}"
    text = (ROOT / "requirements.lock").read_text("ascii")
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    assert text.count("--hash=sha256:") >= len(pins)


def test_the_image_installs_what_was_tested_and_no_tool_of_ours():
    pins, image = locked(), locked("ops/requirements.lock")
    assert {"celery", "rushdb", "flower", "typer"} <= set(image)
    assert image.items() <= pins.items()
    assert not {"pytest", "hypothesis", "ruff", "mypy"} & set(image)


def test_the_python_that_runs_this_is_one_we_say_we_support():
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(Version(sys.version.split()[0]))


# -- what is installed -----------------------------------------------------------------------------------------------

HEAVY = {
    "pydantic",
    "celery",
    "redis",
    "kombu",
    "urllib3",
    "rushdb",
    "requests",
    "tenacity",
    "sqlite3",
    "typer",
    "rich",
}


def test_importing_the_producer_and_its_facade_loads_the_standard_library_only():
    script = "import sys, json, producer, producer.memory, producer.config, producer.scope, producer.journal\n"
    script += "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout))
    assert not loaded & HEAVY
    assert "memory_tasks" not in loaded


def test_the_distribution_brings_its_command_its_types_and_the_demos_conversation():
    (command,) = metadata.distribution("memory-tasks").entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("memory-tasks", "memory_tasks.cli:main")
    assert metadata.version("memory-tasks") == PROJECT["version"]
    for package, name in (("memory_tasks", "data/demo_conversation.json"), ("memory_tasks", "py.typed")):
        assert resources.files(package).joinpath(name).is_file()


# -- documents -------------------------------------------------------------------------------------------------------


def test_the_settings_table_of_the_readme_is_the_one_of_the_code():
    text = (ROOT / "README.md").read_text("utf-8")
    assert settings_table.BEGIN in text and settings_table.END in text
    assert settings_table.replaced(text) == text, "run `make docs`"


def test_the_first_command_of_the_readme_stands_on_its_first_screen():
    assert "make demo" in "\n".join((ROOT / "README.md").read_text("utf-8").splitlines()[:24])


def test_the_readme_names_only_commands_that_there_are():
    from typer.main import get_command

    from memory_tasks import cli

    known = set(get_command(cli.app).commands)  # type: ignore[attr-defined]
    texts = [(ROOT / name).read_text("utf-8") for name in ("README.md", "ops/runbook.md", "docker-compose.yml")]
    named = {word for text in texts for word in re.findall(r'memory-tasks(?:", "| )([a-z][a-z-]+)', text)}
    assert named <= known, named - known
    assert {"up", "agent", "worker", "demo", "capture", "remember", "recall", "status", "doctor"} <= known


def test_the_changelog_has_a_place_for_what_is_not_released():
    assert re.search(r"^## \[?Unreleased\]?$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    "word", ["setup", "demo", "check", "test", "test-all", "test-live", "bench", "docs", "release"]
)
def test_every_command_word_of_the_makefile_is_there(word):
    assert re.search(rf"^{word}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


# -- the compose file ------------------------------------------------------------------------------------------------


def services() -> dict[str, str]:
    """The text of each service. The file is ours and plain: no YAML reader is needed to check what matters."""
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    body = re.search(r"^services:\n(.*?)^volumes:", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    parts = re.split(r"^  ([a-z-]+):\n", body[1], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_composed_redis_evicts_nothing_keeps_a_file_and_asks_for_a_password():
    redis = services()["redis"]
    assert "--maxmemory-policy noeviction" in redis and "--appendonly yes" in redis
    assert '--requirepass "$$REDIS_PASSWORD"' in redis


def test_the_composed_services_do_not_start_without_their_secrets():
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    names = ("REDIS_PASSWORD", "RUSHDB_TOKEN", "MEMORY_SCOPE_SALT", "MEMORY_PRODUCER_KEY", "MEMORY_CACHE_KEY")
    for name in (*names, "FLOWER_PASSWORD"):
        assert f"${{{name}:?" in text, f"{name} may be empty"
        assert re.search(rf"^{name}=$", (ROOT / "ops/env.example").read_text("utf-8"), re.MULTILINE)


def test_the_composed_flower_publishes_no_port_and_what_is_published_is_published_on_loopback():
    assert "ports:" not in services()["flower"]
    published = re.findall(r'^ +- "(.*?):\d+:\d+"$', "".join(services().values()), re.MULTILINE)
    assert len(published) == 3
    assert all(re.fullmatch(r"\$\{[A-Z]+_BIND:-127\.0\.0\.1\}", address) for address in published)
    assert "auth_basic " in (ROOT / "ops/flower-door.conf").read_text("utf-8")
