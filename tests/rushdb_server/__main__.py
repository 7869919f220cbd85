"""Run the test server: `python -m tests.rushdb_server --data FILE --token T`. Prints its URL on one line."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from .server import PROFILES, Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.rushdb_server", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the SQLite file; made when it is not there")
    parser.add_argument("--token", required=True, help="the key that clients send")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--profile", choices=PROFILES, default="2.11")
    parser.add_argument("--embeds", action="store_true", help="managed indexes work")
    parser.add_argument("--embed-delay-s", type=float, default=0.0, help="how long after it was woken an index embeds")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when the parent is gone")
    options = parser.parse_args()
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = Server(
        options.data,
        token=options.token,
        profile=options.profile,
        port=options.port,
        embeds=options.embeds,
        embed_delay_s=options.embed_delay_s,
    )
    print(server.url, flush=True)
    if options.until_stdin_closes:
        threading.Thread(target=_set_when_stdin_closes, args=(ended,), daemon=True).start()
    ended.wait()
    server.close()


def _set_when_stdin_closes(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main()
