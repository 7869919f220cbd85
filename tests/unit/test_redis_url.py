"""What a Redis URL says, in every form; what is refused, and that no secret is ever said again."""

from __future__ import annotations

import urllib.parse

import kombu
import pytest

from memory_tasks import status
from producer import config, errors, redis_client, redis_url

TRICKY = "p@s:s/w?o#r;d%+ é"
QUOTED = urllib.parse.quote(TRICKY, safe="")
GROUP = f"sentinel://u:{QUOTED}@h1:1;sentinel://h2/3?master_name=m&sentinel_password={QUOTED}"
FORMS = [
    f"redis://u:{QUOTED}@host:1/2",
    f"rediss://u:{QUOTED}@host:1/2?ssl_ca_certs=/ca.pem",
    f"redis+socket://u:{QUOTED}@/run/r.sock?virtual_host=2",
    f"unix://u:{QUOTED}@/run/r.sock?db=2",
    GROUP,
]


@pytest.mark.parametrize("url", FORMS)
def test_a_password_of_any_signs_is_the_same_for_us_for_kombu_and_for_redis_py(url):
    form = redis_url.parse(url)
    assert (form.username, form.password) == ("u", TRICKY)
    made = redis_client.connect(url, connect_timeout_s=1, socket_timeout_s=1)
    told = made.connection_pool.connection_kwargs
    assert (told["username"], told["password"], told["db"]) == ("u", TRICKY, form.db)
    made.close()
    for_kombu = redis_client.kombu_form(url, connect_timeout_s=1)
    with kombu.Connection(
        for_kombu.url, ssl=for_kombu.ssl, transport_options=for_kombu.transport_options
    ) as connection:
        channel_class = connection.transport.Channel
        told = channel_class._connparams(_Channel(connection, channel_class))
        assert (told["username"], told["password"], told["db"]) == ("u", TRICKY, form.db)


class _Channel:
    """As much of a kombu channel as its `_connparams` asks for, so that nothing connects."""

    max_connections = socket_timeout = socket_connect_timeout = socket_keepalive = socket_keepalive_options = None
    health_check_interval = retry_on_timeout = client_name = None

    def __init__(self, connection, channel_class):
        self.connection = type("_Transport", (), {"client": connection, "default_port": 1})
        self._class = channel_class

    def __getattr__(self, name):
        value = getattr(self._class, name)
        return value.__get__(self) if hasattr(value, "__get__") and not isinstance(value, type) else value


@pytest.mark.parametrize("url", FORMS)
def test_no_form_says_its_passwords(url):
    said = [
        status.without_secrets(url),
        repr(redis_url.parse(url)),
        redis_url.parse(url).shown,
        repr(redis_client.kombu_form(url, connect_timeout_s=1)),
    ]
    for words in said:
        assert TRICKY not in words
        assert QUOTED not in words
        assert "p@s" not in words


def test_each_sentinel_that_kombu_may_go_on_with_alone_has_login_database_and_all():
    form = redis_client.kombu_form(GROUP, connect_timeout_s=1)
    assert form.url == f"sentinel://u:{QUOTED}@h1:1/3;sentinel://u:{QUOTED}@h2:26379/3"
    assert form.transport_options["master_name"] == "m"
    assert form.transport_options["sentinel_kwargs"]["password"] == TRICKY
    assert redis_url.parse(GROUP).shown == "sentinel://u:***@h1:1;sentinel://h2:26379/3?master_name=m"


def test_certificates_are_verified_unless_the_url_says_otherwise():
    for url in ("rediss://host", "sentinel://host?master_name=m&ssl_ca_certs=/ca.pem"):
        form = redis_url.parse(url)
        assert form.verified
        assert form.tls is not None
        assert (form.tls["ssl_cert_reqs"], form.tls["ssl_check_hostname"]) == ("required", True)
        assert redis_client.kombu_form(url, connect_timeout_s=1).ssl == dict(form.tls)
    trusting = redis_url.parse("rediss://host?ssl_cert_reqs=none")
    assert not trusting.verified
    assert trusting.tls == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    assert redis_url.parse("redis://host").tls is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "unknown form"),
        ("redis://", "names no host"),
        ("redis://host/one", "percent-encode"),
        ("redis://:pa/ss@host:1/0", "percent-encode"),
        ("redis://:pa#ss@host:1/0", "percent-encode"),
        ("redis://:12?3@host:1/0", "percent-encode"),
        ("redis://:12/3@host:1/0", "percent-encode"),
        ("redis://host?ssl_ca_certs=/ca.pem", "rediss://"),
        ("redis://host?socket_timeout=0", "does not have"),
        ("rediss://host?ssl_cert_reqs=optional", "required (the default) or none"),
        ("rediss://host?ssl_check_hostname=no", "true (the default) or false"),
        ("rediss://host?ssl_certfile=/mine.pem", "go together"),
        ("redis+socket://run/r.sock", "three slashes"),
        ("sentinel://host:1", "master_name"),
        ("sentinel://host:1;redis://host:2/0?master_name=m", "percent-encode"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_not_quoted(url, words):
    for setting in ("MEMORY_BROKER_URL", "MEMORY_REDIS_URL"):
        environ = {"HOME": "/nowhere", setting: url}
        with pytest.raises(errors.SettingsRefused) as caught:
            config.load(environ, make_secrets=False)
        assert caught.value.setting == setting
        assert words in str(caught.value)
        assert url not in str(caught.value)
        assert "ss@" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster"])
def test_a_cluster_is_refused_as_what_it_is(scheme):
    with pytest.raises(errors.Unsupported, match="Sentinel"):
        config.load({"HOME": "/nowhere", "MEMORY_BROKER_URL": f"{scheme}://host:1"}, make_secrets=False)


def test_a_plus_in_a_parameter_is_a_plus():
    form = redis_url.parse("sentinel://host?master_name=m&sentinel_password=a+b%2Bc")
    assert form.sentinel_password == "a+b+c"


def test_the_loopback_of_six_groups_is_an_address():
    assert redis_url.parse("redis://[::1]:7/1").hosts == (("::1", 7),)
    assert redis_client.kombu_form("redis://[::1]:7/1", connect_timeout_s=1).url == "redis://[::1]:7/1"
