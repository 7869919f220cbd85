"""Secrets of kinds and in places that the labelled set does not have, written by somebody who had not read the rules.

When they were first tried, the rules missed 37 of 136, a Kubernetes manifest's variables among them. What they still
miss stands in `MISSED` and in ops/redaction.md: whoever mends one takes it out of there. `⟦…⟧` is the secret; `{A32}`
in it are 32 characters of an alphabet.
"""

from __future__ import annotations

import random
import re

import pytest

from producer import redaction
from tests import redaction_cases, redaction_figures
from tests.conftest import Tell

FOUND = [
    # Tokens, alone
    "netlify token is ⟦nfp_{A36}⟧",
    "render: ⟦rnd_{A28}⟧",
    "openrouter ⟦sk-or-v1-{h64}⟧",
    "deepseek key ⟦sk-{h32}⟧",
    "notion, as it was: ⟦secret_{A43}⟧",
    "posthog personal ⟦phx_{A43}⟧",
    "frame.io ⟦fio-u-{A64}⟧",
    "linear oauth ⟦lin_oauth_{h64}⟧",
    "nuget ⟦oy2{a43}⟧",
    "cargo login ⟦cio{A32}⟧",
    "my discord account: ⟦mfa.{w84}⟧",
    "an older installation token ⟦v1.{h40}⟧",
    "swarm ⟦SWMTKN-1-{a50}-{a25}⟧",
    "⟦K10{h64}::server:{h32}⟧ joins k3s",
    "paseto ⟦v2.local.{w80}⟧",
    "NRAK: ⟦NRAK-{U27}⟧",
    "aliyun ⟦LTAI{A12}⟧",
    "only the body:\n⟦b3BlbnNzaC1rZXktdjEAAAAABG5vbmU{A70}⟧",
    # Tokens, named
    "doctl auth init -t ⟦dop_v1_{h64}⟧",
    "DD_APP_KEY=⟦{h40}⟧",
    "the api key for datadog is ⟦{h32}⟧",
    "twilio auth token: ⟦{h32}⟧",
    "eth private key 0x⟦{h64}⟧",
    "PRIVATE_KEY=0x⟦{h64}⟧",
    "bitcoin WIF private key: ⟦L{A51}⟧",
    "kubeadm join 10.0.0.1:6443 --token ⟦{h6}.{h16}⟧",
    "docker swarm join --token ⟦{A40}⟧",
    "https://x.blob.core.windows.net/c/f?sv=2020&sig=⟦{A43}%3D⟧&se=2027",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential=a&X-Amz-Signature=⟦{h64}⟧",
    "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=⟦{A86}==⟧;EndpointSuffix=core.windows.net",
    "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=⟦{A43}=⟧",
    "otpauth://totp/X:maya?secret=⟦{U32}⟧&issuer=X",
    "git clone https://x-access-token:⟦ghs_{A36}⟧@github.com/o/r",
    "curl -H 'PRIVATE-TOKEN: ⟦{A40}⟧' https://gitlab",
    "Authorization: ApiKey ⟦{A40}⟧",
    "headers = {'apikey': '⟦{A44}⟧'}",
    "artifactory ⟦AKCp8{A68}⟧",
    "fb ⟦EAACEdEose0cBA{A80}⟧",
    # Passwords, in configuration
    '{"name": "DB_PASSWORD", "value": "⟦BlueHeron88⟧"}',
    "- name: DB_PASSWORD\n  value: ⟦BlueHeron88⟧",
    "- name: API_TOKEN\n  value: '⟦{A24}⟧'",
    "ENV DB_PASS ⟦BlueHeron88⟧",
    "LDAP bindpw ⟦BlueHeron88⟧",
    "requirepass ⟦BlueHeron88⟧",
    "redis-server --requirepass ⟦BlueHeron88⟧",
    'psk="⟦BlueHeron88⟧"',
    "apiVersion: v1\nkind: Secret\ndata:\n  password: ⟦cTF3MmUzUjR0OA==⟧",
    'smtp_pass = "⟦BlueHeron88⟧"',
    "spring.datasource.password=⟦BlueHeron88⟧",
    "jdbc:postgresql://h/d?user=m&password=⟦BlueHeron88⟧",
    "User Id=sa;Pwd=⟦BlueHeron88⟧;",
    "ansible_become_pass: ⟦BlueHeron88⟧",
    "machine api.x.com login maya password ⟦BlueHeron88⟧",
    "<password>⟦BlueHeron88⟧</password>",
    # Passwords, in commands and code
    "wpa_passphrase MyWifi ⟦BlueHeron88⟧",
    "openssl enc -aes-256-cbc -k ⟦BlueHeron88⟧ -in x",
    "openssl rsa -passin pass:⟦BlueHeron88⟧",
    "gpg --batch --passphrase ⟦BlueHeron88⟧ -d x",
    "kubectl create secret generic db --from-literal=password=⟦q1w2e3R4t8⟧",
    "docker login -u maya -p ⟦BlueHeron88⟧ registry.x",
    "ALTER USER app WITH PASSWORD '⟦Sup3r$ecretDbPw!⟧';",
    "$pw = '⟦BlueHeron88⟧'",
    "conn = connect(user='maya', passwd='⟦BlueHeron88⟧')",
    # Passwords, in sentences
    "my password is ⟦Winter2025!⟧ please keep it",
    "user: maya pass: ⟦hunter22⟧",
    "the wifi password is ⟦BlueHeron88⟧",
    "password → ⟦BlueHeron88⟧",
    "**Password:** `⟦BlueHeron88⟧`",
    "| password | ⟦BlueHeron88⟧ |",
    "passphrase: ⟦correct-horse-battery⟧",
    "パスワードは⟦BlueHeron88⟧です",
]
MISSED = [
    "login: maya / ⟦Tr1cky-Pass99⟧",
    "net use Z: \\\\server\\share /user:maya ⟦Kx9#mPq2⟧",
    "my 2FA setup key is ⟦JBSW Y3DP EHPK 3PXP JBSW Y3DP⟧",
    "bitlocker recovery key: ⟦084731-029384-111823-555512-198231-144719-084733-100232⟧",
    "https://maker.ifttt.com/trigger/x/with/key/⟦{A24}⟧",
    "branch ⟦key_live_{A32}⟧",
    "lob key ⟦live_{A40}⟧",
    "PIN is ⟦1234⟧",
    "my pass word is: ⟦BlueHeron88⟧",
    "enable secret 5 ⟦BlueHeron88⟧",
    "snmp-server community ⟦BlueHeron88⟧ RW",
]


def is_hidden(marked: str, number: int) -> bool:
    text = redaction_cases.fill(marked, random.Random(number))
    ((secret,),) = (re.findall("⟦(.*)⟧", text, re.DOTALL),)
    return not redaction_figures.leaked(secret, redaction.redact(re.sub("[⟦⟧]", "", text))[0])


@pytest.mark.parametrize("marked", FOUND)
def test_a_secret_that_nobody_labelled_goes(marked: str) -> None:
    assert all(is_hidden(marked, number) for number in range(20))


def test_what_is_still_missed_is_known(tell: Tell) -> None:
    assert [marked for marked in MISSED if is_hidden(marked, 1)] == []
    tell(f"redaction, other secrets: {len(FOUND)} of {len(FOUND) + len(MISSED)} kinds found, the rest listed")


@pytest.mark.parametrize(
    "text",
    [
        "- name: DB_HOST\n  value: db.internal.example.org",
        '{"name": "max_tokens", "value": "4096000"}',
        "ENV PATH /usr/local/sbin:/usr/local/bin",
        "ENV TOKEN_FILE /run/secrets/token",
        "requirepass is not set, so anybody may connect",
        "openssl enc -aes-256-cbc -in x -out y",
        "a field named secret_santa_list_of_all_people_in_the_office_2026",
        "see v1.local.md and cion7 of the precinct",
        "$password = get_password();",
        'echo "$PASSWORD" and %TOKEN%',
        "passphrase: see below",
        "step 1 → token → step 2",
        "the key for the build is in the vault",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert redaction.redact(text) == (text, {})
