"""The forms of a RabbitMQ's URL."""

from __future__ import annotations

import ssl

import pytest

from producer import errors, rabbitmq


def test_without_tls_a_url_is_taken_as_it_is_and_several_nodes_too():
    url = "amqp://user:p%40ss@one:5672/vhost;amqp://user:p%40ss@two/vhost"
    assert rabbitmq.plain_url(url) == url
    assert rabbitmq.tls_options(url) is None
    assert rabbitmq.is_verified(url)


def test_tls_verifies_certificate_and_name_unless_it_is_told_otherwise():
    url = "amqps://user:pass@host:5671/vhost"
    assert rabbitmq.tls_options(url) == {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "host"}
    assert rabbitmq.tls_options(f"{url}?ssl_check_hostname=false") == {"cert_reqs": ssl.CERT_REQUIRED}
    assert rabbitmq.tls_options(f"{url}?ssl_cert_reqs=none") == {"cert_reqs": ssl.CERT_NONE}
    assert (rabbitmq.is_verified(url), rabbitmq.is_verified(f"{url}?ssl_cert_reqs=none")) == (True, False)


def test_the_files_of_tls_are_named_as_for_redis_and_kombu_gets_the_rest():
    url = "amqps://host/vhost?ssl_ca_certs=/a+b/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem"
    options = rabbitmq.tls_options(url)
    assert options is not None
    assert (options["ca_certs"], options["certfile"], options["keyfile"]) == ("/a+b/ca.pem", "/c.pem", "/k.pem")
    assert rabbitmq.plain_url(url) == "amqps://host/vhost"


@pytest.mark.parametrize(
    "url",
    [
        "amqps://host/?heartbeat=5",
        "amqp://host/?ssl_ca_certs=/ca.pem",
        "amqps://host/?ssl_cert_reqs=maybe",
        "amqp://host:port/",
        "amqp://one/;redis://two/",
        "amqps://user:pa#ss@host:x/",
    ],
)
def test_what_it_does_not_know_is_refused_without_quoting_it(url):
    with pytest.raises(errors.SettingsRefused, match="MEMORY_BROKER_URL") as caught:
        rabbitmq.plain_url(url)
    assert "host" not in str(caught.value).replace("ssl_check_hostname", "")


def test_several_nodes_with_tls_are_refused():
    with pytest.raises(errors.Unsupported, match="several nodes"):
        rabbitmq.plain_url("amqps://one/;amqps://two/")
