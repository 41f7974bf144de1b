"""Asks and commands a running daemon over REST, with nothing but the standard library.

node = gossipd.Client()                      # 127.0.0.1:7611, or GOSSIPCTL_REST
print(node.status()["step"], [m["name"] for m in node.members()])
node.wait("ready", timeout_s=60)
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import stat
import time
from typing import Any, Dict, List, Optional, Tuple

DEFAULT_ADDRESS = "127.0.0.1:7611"
DEFAULT_PORT = 7611
ANSWER_BYTES_MAX = 64 * 1024 * 1024
TOKEN_BYTES_MAX = 4096
WAIT_POLL_S = 0.2
HOPELESS_S = 60.0  # the patience with a node that has left or is broken
ENDED_S = 3.0  # ... with a job that has ended: word of an extension or the next may be on its way


class NoDaemon(ConnectionError):
    """Nothing answers at the address, or not in time."""


class Refused(RuntimeError):
    """The daemon answered no.

    Attributes:
        status: of HTTP, such as 401 (token), 404 or 409 (not in this state).
        code: one stable word for programs.
        hint: the way out, for people; may be empty.
    """

    def __init__(self, status: int, code: str, detail: str, hint: str) -> None:
        super().__init__(detail + (f"; {hint}" if hint else ""))
        self.status, self.code, self.detail, self.hint = status, code, detail, hint


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _PlainConnection(http.client.HTTPConnection):
    """http, which carries a token only to this machine."""

    def __init__(self, host: str, port: int, timeout_s: float, secret: bool) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._secret = secret

    def connect(self) -> None:
        super().connect()
        peer = self.sock.getpeername()[0].partition("%")[0]
        if self._secret and not ipaddress.ip_address(peer).is_loopback:
            self.close()
            raise ValueError(
                f"the token would travel to {self.host}:{self.port} in plain text, and beyond"
                f" loopback gossipd's REST speaks https; write https://{self.host}:{self.port}"
            )


def _certificates_of(file: str) -> List[bytes]:
    """The certificates of a PEM file, as DER."""
    with open(file, encoding="ascii", errors="replace") as pem:
        text = pem.read()
    found = re.findall(
        r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", text, re.DOTALL
    )
    return [base64.b64decode(part) for part in found]


class _TlsConnection(http.client.HTTPSConnection):
    """https to a certificate that `ca_file` holds itself, whatever its name, or that an authority
    in there has signed for this host.
    """

    def __init__(self, host: str, port: int, timeout_s: float, ca_file: Optional[str]) -> None:
        context = ssl.create_default_context(cafile=ca_file)
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._known = _certificates_of(ca_file) if ca_file else []
        self._named = context
        self._ca_file = ca_file

    def connect(self) -> None:
        if self._known and self._is_known():
            return
        self.sock = self._named.wrap_socket(self._raw(), server_hostname=self.host)

    def _raw(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), self.timeout)

    def _is_known(self) -> bool:
        anonymous = ssl.create_default_context(cafile=self._ca_file)
        anonymous.check_hostname = False  # the certificate itself is compared instead
        anonymous.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        wrapped = anonymous.wrap_socket(self._raw(), server_hostname=self.host)
        if wrapped.getpeercert(True) in self._known:
            self.sock = wrapped
            return True
        wrapped.close()
        return False


def _token_in(file: str) -> str:
    with open(file, encoding="utf-8") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if stat.S_ISREG(mode) and mode & 0o077:
            raise ValueError(
                f"the token file {file} is open to other users, and the token controls the node;"
                f" chmod 600 {file}"
            )
        token = opened.read(TOKEN_BYTES_MAX).strip()
    if not token or not token.isprintable() or not token.isascii():
        raise ValueError(f"{file}: holds no token; write one line of printable characters")
    return token


def _host_and_port(address: str) -> Tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:/\[\]\s]+))(?::(\d{1,5}))?", address)
    port = int(found[3] or DEFAULT_PORT) if found else 0
    if not found or not 0 < port < 65536:
        raise ValueError(f"'{address}' is no REST address; write [https://]HOST:PORT or unix:PATH")
    return found[1] or found[2], port


class Client:
    """One daemon's REST interface.

    Args:
        address: ``[https://]HOST:PORT`` or ``unix:PATH``; by default ``GOSSIPCTL_REST``, else
            127.0.0.1:7611.
        ca_file: PEM file with the daemon's certificate or its signer's, for https.
        token_file: file of mode 0600 with the token that a daemon beyond loopback wants.
        timeout_s: seconds that one request may take at most.

    Every request raises `NoDaemon` where nothing answers and `Refused` where the daemon says no,
    and ValueError where the token is none, or http would carry it to another machine.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        *,
        ca_file: Optional[str] = None,
        token_file: Optional[str] = None,
        timeout_s: float = 10.0,
    ) -> None:
        if address is not None and not isinstance(address, str):
            raise TypeError(
                f"address is {address!r} ({type(address).__name__}); write it as text, such as"
                f" '127.0.0.1:{address if isinstance(address, int) else DEFAULT_PORT}'"
            )
        self.address = address or os.environ.get("GOSSIPCTL_REST") or DEFAULT_ADDRESS
        self.ca_file = ca_file or os.environ.get("GOSSIPCTL_CA_FILE")
        self.token_file = token_file or os.environ.get("GOSSIPCTL_TOKEN_FILE")
        self.timeout_s = timeout_s
        if not self.address.startswith("unix:"):
            _host_and_port(re.sub("^https?://", "", self.address))

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.address.startswith("unix:"):
            return _UnixConnection(self.address[5:], timeout_s)
        if self.address.startswith("https://"):
            host, port = _host_and_port(self.address[8:])
            return _TlsConnection(host, port, timeout_s, self.ca_file)
        host, port = _host_and_port(self.address.removeprefix("http://"))
        return _PlainConnection(host, port, timeout_s, bool(self.token_file))

    def request(
        self, method: str, path: str, body: Any = None, *, timeout_s: Optional[float] = None
    ) -> str:
        """One request; the answer's text. `body`, if any, is sent as JSON."""
        headers = {"Accept": "application/json"}
        if self.token_file:
            headers["Authorization"] = "Bearer " + _token_in(self.token_file)
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body)
        connection = self._connection(timeout_s or self.timeout_s)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
        except ssl.SSLCertVerificationError as error:
            raise NoDaemon(
                f"{self.address}: its certificate is not trusted ({error.verify_message}); pass"
                " the daemon's rest-certificate.pem as ca_file"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise NoDaemon(
                f"no gossipd answers at {self.address} ({error or type(error).__name__}); is it"
                " running, and is this its rest.listen?"
            ) from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise _refusal(answer.status, text)
        return text

    def _json(
        self, method: str, path: str, body: Any = None, timeout_s: float = 0, holds: str = ""
    ) -> Dict[str, Any]:
        """The answer, an object, which has a value `holds`."""
        text = self.request(method, path, body, timeout_s=timeout_s or None)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (holds and holds not in answer):
            raise NoDaemon(f"{self.address}: what answers there is no gossipd")
        return answer

    def status(self) -> Dict[str, Any]:
        """What this node is doing: phase, step, samples, loss, division, ..."""
        return self._json("GET", "/v1/status", holds="phase")

    def members(self) -> List[Dict[str, Any]]:
        """All members that the node knows, itself included."""
        return list(self._json("GET", "/v1/members", holds="members")["members"])

    def links(self) -> List[Dict[str, Any]]:
        """The exchange with each neighbour."""
        return list(self._json("GET", "/v1/links", holds="links")["links"])

    def job(self) -> Dict[str, Any]:
        """The job; ``document`` is its canonical TOML. 404 before the node has one."""
        return self._json("GET", "/v1/job", holds="document")

    def history(self) -> Dict[str, Any]:
        """How the training went: ``points`` with time_s, step, cluster_samples, loss, ..."""
        return self._json("GET", "/v1/history", holds="points")

    def metrics(self) -> str:
        """All metrics in Prometheus' text format."""
        return self.request("GET", "/metrics")

    def ready(self) -> bool:
        """Whether the node trains, or has finished; false where nothing answers."""
        try:
            self.request("GET", "/readyz")
        except (NoDaemon, Refused):
            return False
        return True

    def leave(self) -> Dict[str, Any]:
        """Leaves the cluster for good; the daemon stays up until `join`."""
        return self._json("POST", "/v1/cluster/leave", timeout_s=60)

    def join(self, *seeds: str) -> Dict[str, Any]:
        """Joins the cluster again, through these members where given."""
        return self._json("POST", "/v1/cluster/join", {"seeds": seeds} if seeds else None)

    def pause(self) -> Dict[str, Any]:
        """Makes no steps until `resume`."""
        return self._json("POST", "/v1/training/pause")

    def resume(self) -> Dict[str, Any]:
        """Goes on training."""
        return self._json("POST", "/v1/training/resume")

    def checkpoint(self) -> str:
        """Writes a checkpoint now; its path on the daemon's machine."""
        answer = self._json("POST", "/v1/checkpoint", timeout_s=60, holds="checkpoint")
        return str(answer["checkpoint"]["path"])

    def extend(self, samples: int) -> Dict[str, Any]:
        """Trains the whole cluster on that many more samples."""
        return self._json("POST", "/v1/job/extend", {"samples": samples})

    def start_job(self, file: str) -> Dict[str, Any]:
        """Goes on to the cluster's next job; `file` is on the daemon's machine."""
        return self._json("POST", "/v1/job/start", {"file": file}, timeout_s=90)

    def forget(self, member_id: str) -> Dict[str, Any]:
        """Stops listing a member (16 hex digits) that failed or left; its samples still count."""
        return self._json("POST", "/v1/members/forget", {"id": member_id})

    def wait(self, condition: str = "ready", timeout_s: float = 300.0) -> Dict[str, Any]:
        """Waits until the node is ``ready``, ``finished`` or ``left``, or until ``members=N``,
        ``step=N`` or ``samples=N`` (of the cluster) is reached; the status then.

        Raises TimeoutError after `timeout_s`, ValueError for any other condition, and `Refused`
        where for a minute the node has left (code ``left``) or its training is broken
        (``broken``), so that it does not get there by itself, or the job has ended below the
        figure (``ended``).
        """
        holds = _condition(condition)
        end = time.monotonic() + timeout_s
        hopeful = time.monotonic()
        while True:
            seen = "nothing answers"
            try:
                status = self.status()
                if holds(status):
                    return status
                why = _hopeless(condition, status)
                if why is None:
                    hopeful = time.monotonic()
                elif time.monotonic() - hopeful >= (ENDED_S if why.code == "ended" else HOPELESS_S):
                    raise why
                seen = f"phase {status.get('phase')}, waiting for {status.get('waiting_for')!r}"
            except NoDaemon:
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"{self.address}: no '{condition}' in {timeout_s} s; {seen}")
            time.sleep(WAIT_POLL_S)


def _condition(text: str) -> Any:
    name, _, number = text.partition("=")
    if text == "ready":
        return lambda s: s.get("ready")
    if text in ("finished", "left"):
        return lambda s: s.get("phase") == text
    key = {"members": "members_alive", "step": "step", "samples": "cluster_samples"}.get(name)
    if key is None or not number.isdecimal():
        raise ValueError(
            f"'{text}' is no condition; wait for ready, finished, left, members=N, step=N or"
            " samples=N"
        )
    return lambda s: s.get(key, 0) >= int(number)


def _hopeless(condition: str, status: Dict[str, Any]) -> Optional[Refused]:
    """Why a node does not get there by itself, as gossipctl knows it."""
    failure = (status.get("trainer") or {}).get("failure")
    if condition == "left":
        return None
    if status.get("phase") == "left":
        return Refused(409, "left", "this node has left its cluster", "join() brings it back")
    if status.get("phase") == "finished" and condition.startswith(("samples", "step")):
        reached = f"{status.get('cluster_samples')} samples, at step {status.get('step')}"
        detail = f"the job has ended with {reached}, below {condition}"
        return Refused(409, "ended", detail, "wait for finished, or extend() the job")
    if condition.startswith(("members", "samples")):
        return None  # others may still come, and train
    if status.get("phase") == "broken" or failure:
        detail = "this node's training is broken" + (f": {failure}" if failure else "")
        return Refused(409, "broken", detail, "see the log of gossipd; a restart goes on")
    return None


def _refusal(status: int, text: str) -> Refused:
    try:
        problem = json.loads(text)
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    detail = str(problem.get("detail") or problem.get("title") or f"HTTP {status}")
    hint = str(problem.get("hint") or "")
    return Refused(status, str(problem.get("code") or "error"), detail, hint)
