"""What `gossipd run` takes its daemon's settings for."""

import pytest

from gossipd import run


def test_options_are_found_however_they_are_written(monkeypatch):
    value = run.value_of
    assert value(["--rest", "a:1"], "--rest", "rest.listen") == "a:1"
    assert value(["--rest=a:1"], "--rest", "rest.listen") == "a:1"
    assert value(["--set", "rest.listen=a:1"], "--rest", "rest.listen") == "a:1"
    assert value(["--set=rest.listen=a:1"], "--rest", "rest.listen") == "a:1"
    assert value(["--listen", "a:1"], "--rest", "rest.listen") is None
    monkeypatch.setenv("GOSSIPD_REST_LISTEN", "b:2")
    assert value([], "--rest", "rest.listen") == "b:2"


@pytest.mark.parametrize("override", [["--set", "rest.listen=b:2"], ["--set=rest.listen=b:2"]])
def test_an_option_counts_more_than_set_and_that_more_than_the_environment(monkeypatch, override):
    monkeypatch.setenv("GOSSIPD_REST_LISTEN", "c:3")
    for options in (["--rest", "a:1", *override], [*override, "--rest=a:1"]):
        assert run.value_of(options, "--rest", "rest.listen") == "a:1"
    assert run.value_of(override, "--rest", "rest.listen") == "b:2"


NODE_FILE = """
job = "mine.toml"
state_dir = "kept"
listen = "127.0.0.1:7000"
key_file = "none"
rest = {listen = "127.0.0.1:7001"}
[trainer]
socket = "/run/mine.sock"
"""


def test_a_node_file_is_read_as_the_daemon_reads_it(monkeypatch, tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(NODE_FILE)
    named = ["--config", str(file)]

    def value(options, key, name="--none"):
        return run.value_of(options, name, key)

    for options in (named, [f"--config={file}"]):
        assert value(options, "job") == str(tmp_path / "mine.toml")
        assert value(options, "state_dir") == str(tmp_path / "kept")
        assert value(options, "key_file") == "none"
        assert value(options, "rest.listen") == "127.0.0.1:7001"
        assert value(options, "trainer.socket") == "/run/mine.sock"
        assert value(options, "rest.nothing") is None
    file.write_text(NODE_FILE.replace("127.0.0.1:7001", "unix:so ck"))
    assert value(named, "rest.listen") == f"unix:{tmp_path}/so ck"
    assert value([*named, "--listen", "a:1"], "listen", "--listen") == "a:1"
    assert value([*named, "--set", "listen=a:1"], "listen") == "a:1"
    monkeypatch.setenv("GOSSIPD_LISTEN", "b:2")
    assert value(named, "listen") == "b:2"
    monkeypatch.delenv("GOSSIPD_LISTEN")
    monkeypatch.setenv("GOSSIPD_CONFIG", str(file))
    assert value([], "listen") == "127.0.0.1:7000"
    file.write_text("listen = ")
    assert value([], "listen") is None  # and the daemon says why


def test_what_a_node_file_says_decides_where_the_script_attaches(monkeypatch, tmp_path):
    def begun(text):
        (tmp_path / "node.toml").write_text(text)
        daemon = run.Daemon("/bin/true", ["--config", str(tmp_path / "node.toml")], None)
        daemon.process.wait()
        return daemon

    kept = begun('state_dir = "kept"\nlisten = "127.0.0.1:7000"\nrest.listen = "127.0.0.1:7001"\n')
    assert kept.socket == str(tmp_path / "kept" / "trainer.sock")
    assert kept.rest == "127.0.0.1:7001"
    assert kept._line == ["/bin/true", "--config", str(tmp_path / "node.toml")]
    assert begun('[trainer]\nsocket = "here"\n').socket == str(tmp_path / "here")
    plain = begun('key_file = "none"\n')._line
    assert plain[plain.index("--listen") + 1].startswith("127.0.0.1:")


def test_a_daemon_without_a_trainers_socket_is_refused_at_once(monkeypatch, tmp_path):
    file = tmp_path / "node.toml"
    file.write_text('trainer.socket = "none"\n')

    def refused(options, where):
        with pytest.raises(run.Usage, match=f"no script can attach: take it out of {where}$"):
            run.check_options(options)

    refused(["--config", str(file)], f"the node file {file}")
    monkeypatch.setenv("GOSSIPD_TRAINER_SOCKET", "none")
    refused([], r"the environment \(GOSSIPD_TRAINER_SOCKET\)")
    refused(["--set", "trainer.socket=none"], "the command line")
    run.check_options(["--set=trainer.socket=./none"])


@pytest.mark.parametrize(
    "options,asked",
    [
        (["--rest", "none"], {}),
        (["--rest", "unix:a"], {"address": "unix:a"}),
        (["--rest", "localhost:1"], {"address": "localhost:1"}),
        (
            ["--rest=*:1", "--rest-token-file=/t"],
            {
                "address": "https://127.0.0.1:1",
                "token_file": "/t",
                "ca_file": "/s/rest-certificate.pem",
            },
        ),
        (
            ["--rest=[::]:1", "--set", "rest.certificate=/c"],
            {"address": "https://[::1]:1", "ca_file": "/c"},
        ),
        (
            ["--rest=127.0.0.1:1", "--set", "rest.tls=on"],
            {"address": "https://127.0.0.1:1", "ca_file": "/s/rest-certificate.pem"},
        ),
    ],
)
def test_the_daemon_is_asked_as_its_settings_say(options, asked):
    rest = run.value_of(options, "--rest", "rest.listen")
    assert run.client_of(options, rest, "/s") == asked
