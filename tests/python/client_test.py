"""The REST client and the bridges, against a small server in this process."""

import glob
import http.server
import ipaddress
import json
import os
import socketserver
import ssl
import subprocess
import threading

import pytest

import gossipd
from gossipd import bridges


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        self.server.seen.append((self.command, self.path, body, self.headers["Authorization"]))
        status, text = self.server.answer(self.command, self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do

    def address_string(self):
        return "test"

    def log_message(self, *_):
        pass


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def serve(server, answer):
    server.seen = []
    server.answer = answer
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    made.answer = None
    yield made
    if made.answer:
        made.shutdown()
    made.server_close()


def client_of(server, scheme="", **options):
    return gossipd.Client(f"{scheme}127.0.0.1:{server.server_port}", **options)


def token_in(folder):
    file = folder / "token"
    file.write_text("secret\n")
    file.chmod(0o600)
    return str(file)


def json_answer(value, status=200):
    return lambda *_: (status, json.dumps(value).encode())


def test_a_status_comes_back_with_the_token(server, tmp_path):
    serve(server, json_answer({"phase": "running", "step": 4}))
    token = token_in(tmp_path)
    for scheme in ("", "http://"):
        assert client_of(server, scheme, token_file=token).status()["step"] == 4
    assert server.seen == 2 * [("GET", "/v1/status", "", "Bearer secret")]


def test_a_token_goes_to_no_other_machine_in_plain_text(server, tmp_path, monkeypatch):
    serve(server, json_answer({"phase": "running"}))
    address = type(ipaddress.ip_address("127.0.0.1"))
    monkeypatch.setattr(address, "is_loopback", False)  # as if that were another machine
    for scheme in ("", "http://"):
        with pytest.raises(ValueError, match="in plain text.* write https://127.0.0.1:[0-9]+$"):
            client_of(server, scheme, token_file=token_in(tmp_path)).status()
        client_of(server, scheme).status()
    assert [token for *_, token in server.seen] == [None, None]


def test_a_token_that_others_can_read_is_refused_before_it_is_sent(server, tmp_path):
    serve(server, json_answer({"phase": "running"}))
    token = token_in(tmp_path)
    os.chmod(token, 0o640)
    with pytest.raises(ValueError, match=f"open to other users.* chmod 600 {token}"):
        client_of(server, token_file=token).status()
    assert server.seen == []


def test_commands_send_what_the_daemon_reads(server):
    serve(server, json_answer({"checkpoint": {"path": "/a"}}))
    client = client_of(server)
    client.join("box1")
    client.extend(10)
    client.start_job("/b.toml")
    client.forget("00ff")
    assert client.checkpoint() == "/a"
    assert [(path, body and json.loads(body)) for _, path, body, _ in server.seen] == [
        ("/v1/cluster/join", {"seeds": ["box1"]}),
        ("/v1/job/extend", {"samples": 10}),
        ("/v1/job/start", {"file": "/b.toml"}),
        ("/v1/members/forget", {"id": "00ff"}),
        ("/v1/checkpoint", ""),
    ]


def test_a_refusal_has_code_and_way_out(server):
    problem = {"code": "not-joined", "detail": "no cluster yet", "hint": "join one"}
    serve(server, json_answer(problem, 409))
    with pytest.raises(gossipd.Refused) as refusal:
        client_of(server).leave()
    assert (refusal.value.status, refusal.value.code) == (409, "not-joined")
    assert str(refusal.value) == "no cluster yet; join one"


@pytest.mark.parametrize("text", [b"", b"nonsense", b"[]", b"\xff"])
def test_an_error_without_words_is_a_refusal_all_the_same(server, text):
    serve(server, lambda *_: (500, text))
    with pytest.raises(gossipd.Refused, match="HTTP 500"):
        client_of(server).status()


@pytest.mark.parametrize("text", [b"<html>", b"{}", b"[1]"])
def test_something_else_on_the_port_is_no_daemon(server, text):
    serve(server, lambda *_: (200, text))
    for ask in (client_of(server).status, client_of(server).members, client_of(server).history):
        with pytest.raises(gossipd.NoDaemon, match="no gossipd"):
            ask()


def test_nothing_there_is_no_daemon(tmp_path):
    client = gossipd.Client(f"unix:{tmp_path}/none")
    with pytest.raises(gossipd.NoDaemon, match="is it running"):
        client.status()
    assert not client.ready()
    with pytest.raises(TimeoutError, match="nothing answers"):
        client.wait("ready", timeout_s=0)


def test_a_unix_socket_is_served(tmp_path):
    with UnixServer(str(tmp_path / "rest"), Handler) as server:
        serve(server, json_answer({"members": [{"name": "box1"}]}))
        assert gossipd.Client(f"unix:{tmp_path}/rest").members() == [{"name": "box1"}]
        server.shutdown()


@pytest.mark.parametrize(
    "address",
    ["", "ftp://a", "http://", "http://https://a", "a:0", "a:99999", "a b", "[::1", "a:1:2"],
)
def test_an_address_that_is_none_is_refused(address):
    if address == "":
        assert gossipd.Client(address).address == "127.0.0.1:7611"
        return
    with pytest.raises(ValueError, match="is no REST address"):
        gossipd.Client(address)


def test_an_address_that_is_no_text_is_named():
    with pytest.raises(TypeError, match=r"address is 7611 \(int\); .*'127.0.0.1:7611'"):
        gossipd.Client(7611)


def test_waiting_names_unknown_conditions():
    with pytest.raises(ValueError, match="wait for ready"):
        gossipd.Client().wait("redy")
    with pytest.raises(ValueError, match="wait for ready"):
        gossipd.Client().wait("step=many")


@pytest.mark.parametrize(
    "status,condition,code",
    [
        ({"phase": "left"}, "ready", "left"),
        ({"phase": "left"}, "samples=5", "left"),
        ({"phase": "broken"}, "finished", "broken"),
        ({"phase": "training", "trainer": {"failure": "no memory"}}, "step=5", "broken"),
        ({"phase": "finished", "cluster_samples": 4}, "samples=5", "ended"),
        ({"phase": "finished", "step": 4}, "step=5", "ended"),
        ({"phase": "broken"}, "members=2", None),
        ({"phase": "broken"}, "left", None),
    ],
)
def test_waiting_for_a_node_that_has_left_or_is_broken_ends(
    server, monkeypatch, status, condition, code
):
    serve(server, json_answer(status))
    monkeypatch.setattr("gossipd.client.HOPELESS_S", 0)
    monkeypatch.setattr("gossipd.client.ENDED_S", 0)
    if code is None:
        with pytest.raises(TimeoutError):
            client_of(server).wait(condition, timeout_s=0)
        return
    with pytest.raises(gossipd.Refused) as refused:
        client_of(server).wait(condition, timeout_s=3600)
    assert refused.value.code == code


def certificate(folder, name):
    key, pem = str(folder / f"{name}.key"), str(folder / f"{name}.pem")
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    line += f" -subj /CN={name} -keyout {key} -out {pem}"
    subprocess.run(line.split(), check=True, capture_output=True)
    return key, pem


def test_https_trusts_the_daemons_own_certificate_and_no_other(server, tmp_path):
    key, pem = certificate(tmp_path, "box1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # of clients that trust nobody
    serve(server, json_answer({"phase": "running"}))
    assert client_of(server, "https://", ca_file=pem).status() == {"phase": "running"}
    _, other = certificate(tmp_path, "other")
    for ca_file in (other, None):
        with pytest.raises(gossipd.NoDaemon, match="not trusted"):
            client_of(server, "https://", ca_file=ca_file).status()
    assert len(server.seen) == 1


POINTS = [
    {"time_s": 1.0, "step": 10, "cluster_samples": 30, "loss": 2.0, "consensus_distance": 1},
    {"time_s": 3.0, "step": 30, "cluster_samples": 90, "loss": 1.0, "accuracy": 0.5},
]


def history_server(server, points):
    def answer(_, path):
        if path == "/v1/status":
            return 200, b'{"phase": "finished", "name": "box1"}'
        return 200, json.dumps({"points": points}).encode()

    return serve(server, answer)


def test_history_is_fed_once_also_after_a_restart_that_lost_its_last_points(server):
    points = [{"time_s": float(i), "step": 10 * i, "loss": 1.0} for i in range(11)]
    history_server(server, points)
    feed = bridges.HistoryFeed(client_of(server))
    assert len(feed.poll()) == 11
    points[9:] = [{"time_s": 8.5, "step": 84, "loss": 0.5}]
    assert feed.poll() == [(84, {"train/loss": 0.5})]
    assert feed.poll() == []


def test_history_is_fed_once_and_that_of_the_next_job_anew(server):
    points = list(POINTS)
    history_server(server, points)
    feed = bridges.HistoryFeed(client_of(server))
    assert [step for step, _ in feed.poll()] == [10, 30]
    assert feed.poll() == []
    points.append({"time_s": 4.0, "step": 40, "loss": None})
    assert feed.poll() == [(40, {})]
    points[:] = [{"time_s": 0.5, "step": 41, "loss": 0.5}]
    assert feed.poll() == [(41, {"train/loss": 0.5})]


def test_tensorboard_files_hold_the_figures(server, tmp_path):
    pytest.importorskip("torch.utils.tensorboard")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    history_server(server, POINTS)
    arguments = [str(tmp_path), "--rest", f"127.0.0.1:{server.server_port}"]
    assert bridges.main("tensorboard", arguments) == 0
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(10, 2.0), (30, 1.0)]
    assert [e.value for e in events.Scalars("evaluation/accuracy")] == [0.5]


def test_wandb_offline_writes_a_run(server, tmp_path, monkeypatch, capfd):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    history_server(server, POINTS)
    address = f"127.0.0.1:{server.server_port}"
    assert bridges.main("wandb", ["--dir", str(tmp_path), "--rest", address, "--once"]) == 0
    (run,) = glob.glob(os.path.join(tmp_path, "wandb/offline-run-*/run-*.wandb"))
    assert "train/loss" in capfd.readouterr().err and os.path.getsize(run) > 0


def test_wandb_that_begins_no_run_is_said_without_a_trace(server, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb")
    history_server(server, POINTS)

    def refuse(**_):
        raise wandb.Error("no API key configured")

    monkeypatch.setattr(wandb, "init", refuse)
    assert bridges.main("wandb", ["--rest", f"127.0.0.1:{server.server_port}", "--once"]) == 1
    assert capsys.readouterr().err == "gossipd wandb: wandb: no API key configured\n"


def test_a_bridge_that_waits_for_a_daemon_says_so_once(server, monkeypatch, caplog):
    history_server(server, POINTS)
    client, answers = client_of(server), [False, False, True]

    def status():
        if not answers.pop(0):
            raise gossipd.NoDaemon("nothing there")
        return {"phase": "finished"}

    monkeypatch.setattr(client, "status", status)
    assert bridges.follow(client, lambda step, figures: None, poll_s=0) == len(POINTS)
    assert [r.message for r in caplog.records] == [
        "gossipd: nothing there; waiting for it, 600 s at most"
    ]


@pytest.mark.parametrize("phase,ends", [("finishing", True), ("training", False)])
def test_a_bridge_ends_with_the_daemon_of_a_finished_job_and_waits_for_others(
    server, monkeypatch, phase, ends
):
    history_server(server, POINTS)
    client, answers = client_of(server), [phase]

    def status():
        if not answers:
            raise gossipd.NoDaemon("nothing there")
        return {"phase": answers.pop()}

    monkeypatch.setattr(client, "status", status)
    written = []
    try:
        bridges.follow(client, lambda *point: written.append(point), poll_s=0, silence_s=0)
        assert ends
    except gossipd.NoDaemon:
        assert not ends
    assert len(written) == len(POINTS)


def test_a_bridge_without_a_daemon_says_so(tmp_path, capsys):
    pytest.importorskip("wandb", reason="any bridge would do")
    assert bridges.main("wandb", ["--rest", f"unix:{tmp_path}/none", "--once"]) == 1
    assert "no gossipd answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind,lost,package",
    [
        ("tensorboard", "torch", "torch"),
        ("tensorboard", "torch.utils.tensorboard", "torch"),
        ("tensorboard", "tensorboard", "tensorboard"),
        ("wandb", "wandb", "wandb"),
        ("wandb", "google", "wandb"),  # a module of protobuf, which wandb needs
    ],
)
def test_a_bridge_names_the_package_that_it_lacks(monkeypatch, capsys, kind, lost, package):
    def raises(*_):
        raise ModuleNotFoundError(f"No module named '{lost}'", name=lost)

    monkeypatch.setattr(bridges, f"{kind}_writer", raises)
    name = ["--name", "a"] if kind == "wandb" else ["runs"]
    assert bridges.main(kind, [*name, "--rest", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.endswith(f"'{lost}'; pip install '{package}'\n")
