"""A stand-in for W&B's server on loopback: enough to accept a run and its rows."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PROJECT = {"id": "UDE=", "name": "p", "entity": {"name": "me", "id": "RTE="}}
_EMPTY = ("history", "events", "historyTail", "eventsTail")


class WandbServer(ThreadingHTTPServer):
    """Keeps the rows of history that runs send, in `rows`, and saved views, in `views`.

    While `answers` is not set it takes requests and says nothing.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rows: list[dict[str, Any]] = []
        self.views: list[dict[str, Any]] = []
        self.answers = threading.Event()
        self.answers.set()

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up in the middle of a request are none of the test's business."""


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """A running server."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.answers.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""

    def answer(self) -> None:
        """Answer a GraphQL query, keep the rows of a file stream, accept all else."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.answers.wait()
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict[str, Any] = {}
        if self.path.startswith("/graphql"):
            answer = {"data": _graphql(json.loads(body), self.server)}
        elif self.path.endswith("/file_stream"):
            stream = json.loads(body).get("files", {}).get("wandb-history.jsonl", {})
            self.server.rows += [json.loads(line) for line in stream.get("content", [])]
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names that http.server calls


def _graphql(request: dict[str, Any], server: WandbServer) -> dict[str, Any]:
    url = server.url
    found = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
    name = request.get("operationName") or (found[1] if found else "")
    if name == "Viewer":
        teams = {"edges": [{"node": {"name": "me"}}]}
        viewer = {"id": "VTE=", "entity": "me", "username": "me", "flags": "{}", "teams": teams}
        return {"viewer": viewer}
    if name == "UpsertBucket":
        run = request["variables"].get("name") or "run"
        bucket = {"id": "UnVuOjE=", "name": run, "displayName": run, "project": _PROJECT}
        bucket |= {"config": "{}", "historyLineCount": 0} | dict.fromkeys(_EMPTY, "[]")
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}
    if name == "CreateRunFiles":
        names = request["variables"].get("files", [])
        files = [{"name": file, "uploadUrl": f"{url}/files/{file}"} for file in names]
        return {"createRunFiles": {"runID": "UnVuOjE=", "uploadHeaders": [], "files": files}}
    if name == "UpsertView2":
        server.views.append(request["variables"])
        return {"upsertView": {"view": {"id": "Vmlldw==", "name": "view1"}, "inserted": True}}
    if name == "ServerFeaturesQuery":
        return {"serverInfo": {"features": []}}
    return {}
