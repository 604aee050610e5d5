"""A stand-in for the Hugging Face Hub's file API, on a local socket: repositories, commits, LFS uploads, downloads."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse


class Hub(ThreadingHTTPServer):
    """Keeps every commit of every repository in memory."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, list[dict[str, bytes]]] = {}
        self.objects: dict[str, bytes] = {}
        self.private: set[str] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit's hash and its files; None where there is no such revision."""
        commits = self.repositories[repo]
        hashes = [sha(repo, number) for number in range(len(commits))]
        if revision == "main":
            revision = hashes[-1]
        return (revision, commits[hashes.index(revision)]) if revision in hashes else None


def sha(repo: str, number: int) -> str:
    return hashlib.sha1(f"{repo} {number}".encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        path, body = unquote(urlparse(self.path).path), self._body()
        if self.headers.get("authorization") != "Bearer secret":
            return self._json({"error": "Invalid credentials"}, 401)
        if path == "/api/validate-yaml":
            good = json.loads(body)["content"].startswith("---\nlibrary_name: offaxis\n")
            return self._json({"errors": [] if good else [{"message": "no front matter"}], "warnings": []})
        if path == "/api/repos/create":
            fields = json.loads(body)
            repo = f"{fields['organization']}/{fields['name']}"
            known = repo in self.server.repositories
            self.server.repositories.setdefault(repo, [{}])
            return self._json({"url": f"{self.server.address}/{repo}"}, 409 if known else 200)
        if found := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            modes = [
                (f["path"], "lfs" if f["path"].endswith(".safetensors") else "regular")
                for f in json.loads(body)["files"]
            ]
            return self._json({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes]})
        if re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            actions = [
                {**o, "actions": {"upload": {"href": f"{self.server.address}/lfs/{o['oid']}", "header": {}}}}
                for o in objects
            ]
            return self._json({"transfer": "basic", "objects": actions})
        if found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            commits = self.server.repositories[found[1]]
            files = dict(commits[-1])
            for line in body.splitlines():
                record = json.loads(line)
                value = record["value"]
                if record["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif record["key"] == "lfsFile":
                    files[value["path"]] = self.server.objects[value["oid"]]
            commits.append(files)
            oid = sha(found[1], len(commits) - 1)
            url = f"{self.server.address}/{found[1]}/commit/{oid}"
            return self._json({"commitUrl": url, "commitOid": oid, "hookOutput": "", "success": True})
        return self._json({"error": path}, 404)

    def do_PUT(self) -> None:
        data = self._body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == oid
        self.server.objects[oid] = data
        self._json({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        asked = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|tree)/([^/]+))?/?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = asked or file
        if found is None or found[1] not in self.server.repositories:
            return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        commit = self.server.files(found[1], found[2] or "main")
        if commit is None:
            return self._json({"error": "Revision not found"}, 404, {"X-Error-Code": "RevisionNotFound"})
        oid, files = commit
        if asked is not None and "/tree/" in path:
            listed = [
                {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in files.items()
            ]
            return self._json(listed)
        if asked is not None:
            names = [{"rfilename": name} for name in files]
            return self._json(
                {"id": found[1], "modelId": found[1], "sha": oid, "siblings": names, "tags": [], "private": False}
            )
        assert file is not None
        if file[3] not in files:
            return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        data = files[file[3]]
        headers = {"X-Repo-Commit": oid, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        return self._answer(data, 200, headers)

    def _body(self) -> bytes:
        """The body of a request, sent with its length or in chunks."""
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._answer(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """The stand-in while the block lasts."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join(20)
        hub.server_close()
