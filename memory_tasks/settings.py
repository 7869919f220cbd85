"""The settings tree of the service side: workers, operators' commands, Flower.

`Settings.load(environ)` is called by entry points only, once, and the result is passed down. It holds the agent side's
settings as `producer` (`producer.config`), so that one environment serves both. Variables are the field names in upper
case behind `MEMORY_`; each field states its unit and its reason, and `table()` is what the README and `doctor` print.

Refused at start: a countdown (`MEMORY_RETRY_MAX_COUNTDOWN_S`, `MEMORY_STORE_LATE_S`) of half the visibility timeout or
more. A message that waits longer than that in a worker would be handed to a second one. Variables with our prefix that
nobody reads are no error, since another version may read them; they stand in `unknown` for `doctor` to warn of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import pydantic_settings
from pydantic import Field

from producer import config, errors

__all__ = ["Row", "Settings", "table"]

# Read by neither tree as a field: the first names the state directory, the second the file of a one-shot hook.
_ELSEWHERE = {
    "MEMORY_STATE_DIR": "Where everything local lives.",
    "MEMORY_HOOK_CONFIG": "The one small JSON file that a one-shot hook reads.",
}


def _setting(default: Any, doc: str, *, unit: str, secret: bool = False, **bounds: Any) -> Any:
    if isinstance(default, float):
        bounds["allow_inf_nan"] = False
    return Field(default=default, description=doc, json_schema_extra={"unit": unit, "secret": secret}, **bounds)


class Settings(pydantic_settings.BaseSettings):
    """Settings of workers and commands. Frozen; secrets are left out of the representation."""

    model_config = pydantic_settings.SettingsConfigDict(
        env_prefix=config.PREFIX, frozen=True, extra="forbid", arbitrary_types_allowed=True
    )

    producer: config.ProducerConfig = Field(repr=False, description="The agent side's settings.")
    unknown: tuple[str, ...] = Field(default=(), description="Variables with our prefix that nothing reads.")

    worker_name: str = _setting(
        "worker",
        "Name of this worker in Flower, before the host's name; workers on one host need different ones.",
        unit="name",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
    )
    concurrency: int = _setting(
        16,
        "Task threads of one worker process. They wait for the store together; more processes for more throughput.",
        unit="threads",
        ge=1,
        le=512,
    )
    visibility_timeout_s: float = _setting(
        600.0,
        "When the broker hands an unfinished message to another worker; no request is sent after half of it.",
        unit="seconds",
        gt=0,
    )
    restore_interval_s: float = _setting(
        5.0,
        "How often workers look for messages that a killed worker left; kombu by itself needs 100 s.",
        unit="seconds",
        gt=0,
    )
    retry_max_countdown_s: float = _setting(
        30.0,
        "Longest wait between two Celery retries; longer waits belong in the journal.",
        unit="seconds",
        gt=0,
    )
    retry_limit: int = _setting(
        3,
        "Celery retries of one message before its event goes back to its journal as deferred.",
        unit="retries",
        ge=0,
        le=20,
    )
    poison_deaths: int = _setting(3, "An event that killed this many worker children is dead.", unit="deaths", ge=1)
    children: int = _setting(
        2,
        "Child processes of one worker for events that arrive unsure or killed one before; each has its own stores.",
        unit="processes",
        ge=1,
        le=64,
    )
    child_requests_max: int = _setting(
        1000, "A child is replaced after so many messages, whatever it may have leaked.", unit="messages", ge=1
    )
    child_idle_s: float = _setting(
        60.0, "A child without work ends after this long; most workers have none.", unit="seconds", gt=0
    )
    store_pool: int = _setting(
        16,
        "Connections to the store kept open by one worker.",
        unit="connections",
        ge=1,
        le=512,
    )
    redis_timeout_s: float = _setting(
        5.0,
        "Timeout of one Redis request for receipts, counts and recent writes.",
        unit="seconds",
        gt=0,
    )
    receipts_ttl_s: int = _setting(
        14 * 86_400,
        "Life of receipts that their host has not read; losing one costs an idempotent redelivery.",
        unit="seconds",
        ge=60,
    )
    dead_letters_kept: int = _setting(
        10_000,
        "Dead letters listed in Redis per tenant; their content stays in the journals whatever the list holds.",
        unit="entries",
        ge=1,
    )
    forget_margin_s: float = _setting(
        60.0,
        "A group forget covers what was appended up to this long after the order, for clocks that differ.",
        unit="seconds",
        ge=0,
    )
    expired_kept_s: float = _setting(
        7 * 86_400.0,
        "How long a fact stays in the store, for history only, once its validUntil has passed.",
        unit="seconds",
        ge=0,
    )
    expiry_every_s: float = _setting(
        3600.0,
        "How often one of the workers removes the facts whose time is over; 0: never by itself.",
        unit="seconds",
        ge=0,
        le=31 * 86_400,
    )
    tenants_file: Path | None = _setting(
        None,
        "JSON list of the keys that workers accept (0600); without it the one key of this environment.",
        unit="path",
    )
    flower_port: int = _setting(
        5555,
        "Flower's port on loopback; its metrics are open whatever its password, so it listens nowhere else.",
        unit="port",
        ge=1,
        le=65_535,
    )
    flower_user: str = _setting(
        "operator", "User of Flower's basic authentication.", unit="name", pattern=r"^[^:,\s]+$"
    )
    flower_password: pydantic.SecretStr = _setting(
        pydantic.SecretStr(""),
        "Its password; empty: no authentication, on loopback only.",
        unit="text",
        secret=True,
        repr=False,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[pydantic_settings.BaseSettings],
        init_settings: pydantic_settings.PydanticBaseSettingsSource,
        *_others: pydantic_settings.PydanticBaseSettingsSource,
        **_named: pydantic_settings.PydanticBaseSettingsSource,
    ) -> tuple[pydantic_settings.PydanticBaseSettingsSource, ...]:
        """Only what `load` passes in: nothing here reads the process's environment by itself."""
        return (init_settings,)

    @classmethod
    def load(cls, environ: Mapping[str, str], *, make_secrets: bool = True) -> Settings:
        """The settings of this environment. Raises `errors.SettingsRefused`, which says what to set."""
        given: dict[str, Any] = {
            name: environ[config.env_name(name)] for name in _own() if environ.get(config.env_name(name))
        }
        known = {row.variable for row in table()}
        unknown = sorted(name for name in environ if name.startswith(config.PREFIX) and name not in known)
        producer = config.load(environ, make_secrets=make_secrets)
        try:
            settings = cls(producer=producer, unknown=tuple(unknown), **given)
        except pydantic.ValidationError as problem:
            first = problem.errors(include_input=False, include_url=False, include_context=False)[0]
            variable = config.env_name(str(first["loc"][0]))
            raise errors.SettingsRefused(variable, str(first["msg"])) from None
        settings.check()
        return settings

    def check(self) -> None:
        """Raise `errors.SettingsRefused` for countdowns that would outlast a delivery."""
        half = self.visibility_timeout_s / 2
        for variable, value in (
            ("MEMORY_RETRY_MAX_COUNTDOWN_S", self.retry_max_countdown_s),
            ("MEMORY_STORE_LATE_S", self.producer.store_late_s),
        ):
            if value >= half:
                raise errors.SettingsRefused(
                    variable,
                    f"{value:g} s is not below half of MEMORY_VISIBILITY_TIMEOUT_S ({half:g} s): "
                    "a message that waits that long is handed to a second worker",
                )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the settings table. `field` is the attribute that holds the effective value."""

    variable: str
    default: str
    unit: str
    reason: str
    secret: bool
    side: str  # "host": read on agent hosts and workers; "worker": on workers only
    field: str


def table() -> list[Row]:
    """Every variable that is read, hosts' first, in the order of the code."""
    rows = [
        Row(variable=name, default="", unit="path", reason=reason, secret=False, side="host", field="")
        for name, reason in _ELSEWHERE.items()
    ]
    for item in dataclasses.fields(config.ProducerConfig):
        if item.name == "state_dir":  # MEMORY_STATE_DIR, above
            continue
        rows.append(
            Row(
                variable=config.env_name(item.name),
                default=item.metadata["shown"] or _shown(item.default),
                unit=item.metadata["unit"],
                reason=item.metadata["doc"],
                secret=item.metadata["secret"],
                side="host",
                field=item.name,
            )
        )
    for name in _own():
        own = Settings.model_fields[name]
        extra = own.json_schema_extra if isinstance(own.json_schema_extra, dict) else {}
        rows.append(
            Row(
                variable=config.env_name(name),
                default=_shown(own.default),
                unit=str(extra.get("unit", "")),
                reason=own.description or "",
                secret=bool(extra.get("secret")),
                side="worker",
                field=name,
            )
        )
    return rows


def _own() -> list[str]:
    return [name for name in Settings.model_fields if name not in ("producer", "unknown")]


def _shown(default: Any) -> str:
    if default is None or default is dataclasses.MISSING or default == () or isinstance(default, pydantic.SecretStr):
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)
