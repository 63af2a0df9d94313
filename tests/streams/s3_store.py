"""A store that speaks as much of S3 as pyarrow's client says: objects of one process, in a dict."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


class Store(http.server.ThreadingHTTPServer):
    """Objects by bucket/key.

    Attributes:
        objects: their bytes.
        asked: what was requested, such as "GET bucket/rows.csv".
        fails: what begins requests that are answered by an error.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.asked: list[str] = []
        self.fails = "no request"

    def address(self, place: str) -> str:
        """Return the address of an object or a folder, with what the client has to know."""
        options = f"endpoint_override=127.0.0.1:{self.server_port}&scheme=http&region=here"
        return f"s3://name:secret@{place}?{options}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests."""

    server: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, data: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.pop("length", str(len(data))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        self.answer(f"{HEAD}<Error><Code>{code}</Code></Error>".encode(), status)

    def take(self) -> bytes:
        """Return what was sent, which may come in chunks of HTTP, and in those of S3."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = self.take_chunks()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            found = b""
            while data:
                size, _, data = data.partition(b"\r\n")
                count = int(size.partition(b";")[0], 16)
                if not count:
                    break
                found, data = found + data[:count], data[count + 2 :]
            data = found
        return data

    def take_chunks(self) -> bytes:
        found = b""
        while count := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(count)
            self.rfile.readline()
        return found

    def begin(self) -> tuple[str, dict[str, list[str]]] | None:
        """Return the place and the options of a request, unless it has to fail."""
        parts = urlsplit(self.path)
        place = unquote(parts.path).strip("/")
        self.server.asked.append(f"{self.command} {place}")
        if self.server.asked[-1].startswith(self.server.fails):
            if self.command in ("PUT", "POST"):
                self.take()
            self.refuse(403, "AccessDenied")
            return None
        return place, parse_qs(parts.query, keep_blank_values=True)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        begun = self.begin()
        if begun is None:
            return
        place, options = begun
        if "/" not in place:
            self.list(place, options)
        elif place not in self.server.objects:
            self.refuse(404, "NoSuchKey")
        else:
            data, asked = self.server.objects[place], self.headers.get("Range")
            if asked is None:
                self.answer(data)
                return
            begin, end = (int(x) for x in re.findall(r"\d+", asked))
            about = f"bytes {begin}-{min(end, len(data) - 1)}/{len(data)}"
            self.answer(data[begin : end + 1], 206, Content_Range=about)

    def list(self, bucket: str, options: dict[str, list[str]]) -> None:
        (prefix,) = options.get("prefix", [""])
        (delimiter,) = options.get("delimiter", [""])
        found: dict[str, str] = {}
        for place, data in sorted(self.server.objects.items()):
            own, _, key = place.partition("/")
            if own != bucket or not key.startswith(prefix):
                continue
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            if at >= 0:
                name = escape(key[: at + 1])
                found[name] = f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
            else:
                about = f"<Size>{len(data)}</Size><LastModified>2026-01-01T00:00:00Z</LastModified>"
                found[key] = f"<Contents><Key>{escape(key)}</Key>{about}</Contents>"
        count = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
        text = f"{HEAD}<ListBucketResult>{count}{''.join(found.values())}</ListBucketResult>"
        self.answer(text.encode(), Content_Type="application/xml")

    def do_PUT(self) -> None:
        begun = self.begin()
        if begun is None:
            return
        place, options = begun
        data = self.take()
        if "uploadId" in options:
            self.server.uploads[place][int(options["partNumber"][0])] = data
        else:
            self.server.objects[place] = data
        self.answer(ETag='"x"')

    def do_POST(self) -> None:
        begun = self.begin()
        if begun is None:
            return
        place, options = begun
        self.take()
        if "uploads" in options:
            self.server.uploads[place] = {}
            text = "<UploadId>x</UploadId>"
            name = "InitiateMultipartUploadResult"
        else:
            parts = self.server.uploads.pop(place)
            self.server.objects[place] = b"".join(parts[at] for at in sorted(parts))
            text, name = '<ETag>"x"</ETag>', "CompleteMultipartUploadResult"
        self.answer(f"{HEAD}<{name}>{text}</{name}>".encode(), Content_Type="application/xml")


@contextmanager
def serve_objects() -> Iterator[Store]:
    """Serve an empty store while the block runs."""
    with Store() as store:
        thread = threading.Thread(target=store.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()
