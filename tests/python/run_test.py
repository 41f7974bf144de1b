"""gossipd run: the daemon beside the script, signals, exit codes, what becomes of a secret."""

import fcntl
import http.server
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
import types

import pytest
from processes import die_with_the_test, read_some, wait_until

import gossipd
from gossipd import command, run

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(gossipd.__file__))
# A daemon for the launcher: opens its socket, says how it was called, and ends by SIGTERM.
DAEMON = """#!{python}
import json, os, signal, sys, time
sys.path.insert(0, {here!r})
from fake_daemon import FakeDaemon
state = sys.argv[sys.argv.index("--state-dir") + 1]
os.makedirs(state, exist_ok=True)
lives = os.path.join(state, "lives")
with open(lives, "a") as file:
    json.dump([sys.argv[1:], os.environ.get("GOSSIPD_JOIN")], file)
    file.write("\\n")
if "--ends-with" in sys.argv:
    print("gossipd: bad-invite: it has no 40 characters", file=sys.stderr)
    sys.exit(int(sys.argv[sys.argv.index("--ends-with") + 1]))
path = os.path.join(state, "trainer.sock")
if os.path.exists(path):
    os.unlink(path)
def end(*_):
    with open(os.path.join(state, "ended"), "w"):
        pass
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
FakeDaemon(path)
die = os.path.join(state, "die")
while True:
    time.sleep(0.02)
    if os.path.exists(die):
        os.unlink(die)
        os._exit(1)
"""


@pytest.fixture
def launch(tmp_path, started):
    """Starts the launcher with that daemon; returns its process."""
    daemon = tmp_path / "bin" / "gossipd"
    daemon.parent.mkdir()
    daemon.write_text(DAEMON.format(python=sys.executable, here=HERE))
    daemon.chmod(0o755)
    start = (
        "import sys, gossipd.run as r; r.find_program = lambda name: {!r};"
        "r.RESTART_MIN_S = 0.05; sys.argv[0] = 'gossipd'; sys.exit(r.main(sys.argv[1:]))"
    ).format(str(daemon))

    def begin(*arguments, program=start, **options):
        environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1"}
        line = [sys.executable, "-c", program, "--state-dir", str(tmp_path / "state"), *arguments]
        process = subprocess.Popen(
            line,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **{"preexec_fn": die_with_the_test, **options},
        )
        started.append(process)
        return process

    return begin


def lives(tmp_path):
    with open(tmp_path / "state" / "lives", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def script(text):
    return ["--", sys.executable, "-c", "import os, sys, time, gossipd\n" + text]


def test_the_script_runs_attached_and_its_exit_code_is_ours(launch, tmp_path):
    text = """
import numpy as np
g = gossipd.attach({"w": np.zeros(3, np.float32)}, samples_per_step=1)
print(os.environ["GOSSIPD_SOCKET"], os.environ["GOSSIPCTL_REST"])
g.step(g.params); g.detach(); sys.exit(7)
"""
    process = launch("--job", "a.toml", *script(text))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    socket, rest = out.split()
    assert socket == str(tmp_path / "state" / "trainer.sock")
    ((line, join),) = lives(tmp_path)
    assert line[-4:] == ["--state-dir", str(tmp_path / "state"), "--job", "a.toml"]
    assert line[line.index("--rest") + 1] == rest and "--listen" in line and join is None
    assert (tmp_path / "state" / "ended").exists()


def test_signals_go_to_the_script_and_its_death_is_told(launch, tmp_path):
    process = launch(*script("sys.stdout.write('up\\n'); time.sleep(60)"))
    assert read_some(process.stdout.fileno(), time.monotonic() + 60) == b"up\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "state" / "ended").exists()


class Rest(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers["Authorization"] == "Bearer secret"
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(b'{"phase": "finishing"}')
        if known and self.path == "/v1/status":
            self.server.asked.set()

    def log_message(self, *_):
        pass


def test_a_daemon_that_finishes_is_waited_for_until_a_signal_comes(launch, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rest) as server:
        server.asked = threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        rest = f"127.0.0.1:{server.server_port}"
        text = "sys.stdout.write(os.environ['GOSSIPCTL_TOKEN_FILE'] + '\\n')"
        own = ["--linger", "3600", "--rest", rest, "--rest-token-file", str(token)]
        process = launch(*own, *script(text))
        said = read_some(process.stdout.fileno(), time.monotonic() + 60)
        assert said == f"{token}\n".encode()
        assert server.asked.wait(60)
        process.terminate()
        _, err = process.communicate(timeout=60)
        server.shutdown()
    assert process.returncode == 0, err
    assert (tmp_path / "state" / "ended").exists()


def program(tmp_path, text):
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return str(path)


def test_a_second_signal_kills_a_daemon_that_does_not_end(tmp_path):
    stubborn = program(tmp_path, f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done")
    daemon = run.Daemon(stubborn, ["--state-dir", str(tmp_path)], None)
    wait_until((tmp_path / "up").exists)
    daemon.hurry()
    daemon.hurry()
    daemon.end(3600)
    assert daemon.process.returncode == -signal.SIGKILL


def test_a_daemon_that_cannot_be_asked_is_not_waited_for_and_that_is_said(tmp_path, capsys):
    sleeps = program(tmp_path, "exec sleep 3600")
    for rest, why in (("none", "it has no REST (rest.listen)"), ("unix:/a", "no gossipd answers")):
        run.Daemon(sleeps, ["--state-dir", str(tmp_path), "--rest", rest], None).end(3600)
        assert f"without waiting for other members: {why}" in capsys.readouterr().err
    # A script that fails at once has not let it come as far, and has said why itself.
    daemon = run.Daemon(sleeps, ["--state-dir", str(tmp_path), "--rest", "unix:/a"], None)
    daemon.end(3600, failed=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("code", [0, 78])
def test_a_daemon_that_is_not_started_again_is_said_once_to_have_ended(tmp_path, capsys, code):
    ends = program(tmp_path, f"exit {code}")
    daemon = run.Daemon(ends, ["--state-dir", str(tmp_path)], None)
    daemon.process.wait()
    daemon.keep_alive()
    daemon.keep_alive()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"ended with {code} and is not started again" in said


def test_the_socket_of_another_daemon_is_not_taken_for_its_own(daemon, tmp_path):
    sleeps = program(tmp_path, "exec sleep 3600")
    ours = run.Daemon(sleeps, ["--state-dir", str(tmp_path), "--rest", "none"], None)
    assert ours.socket == daemon.path
    with pytest.raises(TimeoutError):
        ours.wait_listening(0.2)
    ours.end(0)


# The launcher hands on SIGINT before SIGTERM, after which no more comes.
COUNTS = """
import signal
counted = []
def interrupted(*_):
    counted.append(1)
    sys.stdout.write("interrupted\\n")
signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(len(counted)))
sys.stdout.write("up\\n")
while True:
    time.sleep(60)
"""


def test_ctrl_c_reaches_the_script_once_whatever_its_standard_input_is(launch):
    ours, terminal = pty.openpty()

    def take_terminal():
        die_with_the_test()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    try:
        options = {"start_new_session": True, "preexec_fn": take_terminal}
        process = launch(*script(COUNTS), stdin=subprocess.DEVNULL, **options)
        assert read_some(process.stdout.fileno(), time.monotonic() + 60) == b"up\n"
        # A second one would be lost if it came before the script has seen the first.
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        os.write(ours, b"\x03")
        assert read_some(process.stdout.fileno(), time.monotonic() + 60) == b"interrupted\n"
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 1
    finally:
        os.close(ours)
        os.close(terminal)


def test_the_last_words_of_a_daemon_whose_log_is_a_file_are_told(launch, tmp_path):
    log = tmp_path / "log"
    process = launch("--daemon-log", str(log), "--ends-with", "78", "--", "true")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 78
    assert f'78: "gossipd: bad-invite: it has no 40 characters" (in {log})' in err


def test_sigint_that_comes_from_no_terminal_is_handed_on(launch):
    process = launch(*script(COUNTS), start_new_session=True)
    assert read_some(process.stdout.fileno(), time.monotonic() + 60) == b"up\n"
    process.send_signal(signal.SIGINT)
    assert read_some(process.stdout.fileno(), time.monotonic() + 60) == b"interrupted\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 1


def test_a_daemon_that_dies_is_started_again(launch, tmp_path):
    text = f"""
state = {str(tmp_path / "state")!r}
open(os.path.join(state, "die"), "w").close()
while open(os.path.join(state, "lives")).read().count("\\n") < 2:
    time.sleep(0.02)
"""
    process = launch(*script(text))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "the daemon ended with 1" in err
    assert len(lives(tmp_path)) == 2


@pytest.mark.parametrize("code", [0, 1, 78])
def test_a_daemon_that_refuses_to_start_ends_it_with_its_code(launch, tmp_path, code):
    process = launch("--ends-with", str(code), *script("print('never')"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "") and f"exit code {code}" in err
    assert len(lives(tmp_path)) == 1  # since nobody has taken its ports


def test_an_option_without_its_value_takes_none_that_we_add(launch, tmp_path):
    launch("--ends-with", "78", "--job", *script("")).communicate(timeout=60)
    ((line, _),) = lives(tmp_path)
    assert line[-1] == "--job" and "--listen" in line


def test_an_invite_from_standard_input_is_in_no_command_line(launch, tmp_path):
    text = "print('GOSSIPD_JOIN' in os.environ, repr(sys.stdin.read()))"
    process = launch("--join", "-", *script(text), stdin=subprocess.PIPE)
    out, err = process.communicate("\ngossip1secret\nthe script's\n", timeout=60)
    assert out == "False \"the script's\\n\"\n", err
    ((line, join),) = lives(tmp_path)
    assert "--join" not in line and join == "gossip1secret"


def test_an_invite_that_is_asked_for_takes_the_other_addresses_along(launch, tmp_path):
    process = launch("--join=box1", "--join", "-", *script(""), stdin=subprocess.PIPE)
    process.communicate("gossip1secret\n", timeout=60)
    ((line, join),) = lives(tmp_path)
    assert "--join" not in line and join == "box1,gossip1secret"


def test_an_invite_on_the_command_line_runs_nothing_of_the_folder_it_is_started_in(tmp_path):
    (tmp_path / "gossipd.py").write_text("raise SystemExit(7)")
    (tmp_path / "bin").mkdir()
    start = tmp_path / "bin" / "start.py"  # as pip writes it
    start.write_text("import sys, gossipd.command as c; sys.exit(c.main())")
    (tmp_path / "bin" / "gossipd").symlink_to("/bin/false")
    variables = {"PYTHONPATH": SOURCE, "GOSSIPD_BIN_DIR": str(tmp_path / "bin")}
    made = subprocess.run(
        [sys.executable, str(start), "run", "--join", "gossip1abc", "--", "true"],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 1 and "exit code 1" in made.stderr, made


@pytest.mark.parametrize(
    "arguments,code,words",
    [
        (["--job", "a"], 2, "behind --"),
        (["--"], 2, "no command"),
        (["--linger", "--", "true"], 2, "wants a value"),
        (["--linger", "x", "--", "true"], 2, "not 'x'"),
        (["--linger", "-1", "--", "true"], 2, "from 0 on, not '-1'"),
        (["--daemon-log"], 2, "behind --"),
        (["--daemon-log", "/nope/x", "--", "true"], 2, "--daemon-log: /nope/x: No such file"),
        (["--", "/no/such/program"], 127, "No such file"),
        (["--", "pyhton", "train.py"], 127, "pyhton: No such file"),
        (["--", "/etc"], 126, "Permission denied"),
        (["--join", "-", "--", "true"], 2, "has read no invite"),
        (["--rest", "127.0.0.1:0", "--", "true"], 2, "(--rest) 127.0.0.1:0: the script is told"),
        (["--set", "rest.listen=[::]:00", "--", "true"], 2, "name one, or leave it out"),
    ],
)
def test_mistakes_are_told_and_no_daemon_begins(launch, tmp_path, arguments, code, words):
    process = launch(*arguments, stdin=subprocess.DEVNULL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and words in err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "job,kind,refused",
    [
        ("name = 'x'\n[model]\nkind = 'mlp' # a\n[loss]\nkind = 'mse'\n", "mlp", 'kind = "mlp"'),
        ('[loss]\nkind = "mse"\n[ model ] # b\n  kind="external"\n', "external", None),
        ('kind = "mlp"\n[model]\nhidden = [1]\n[schedule]\nkind = "cosine"\n', None, "no kind"),
        ('model = {kind = "external"}\n', None, None),  # read by the daemon alone
    ],
)
def test_a_job_that_the_daemon_trains_itself_founds_nothing(launch, tmp_path, job, kind, refused):
    assert run.model_kind(job) == kind
    (tmp_path / "mine.toml").write_text(job)
    process = launch("--job", str(tmp_path / "mine.toml"), "--", "true")
    _, err = process.communicate(timeout=60)
    if refused:
        said = f"mine.toml: the daemon trains this job itself ({refused} under [model])"
        assert process.returncode == 2 and said in err
    assert (tmp_path / "state").exists() == (not refused)


def test_a_job_that_only_the_daemon_knows_is_refused_as_soon_as_it_says_so(monkeypatch, tmp_path):
    job = {"name": "theirs", "document": 'name = "theirs"\n\n[model]\nkind = "cnn"\n'}
    monkeypatch.setattr(run.Client, "job", lambda _: job)
    daemon = run.Daemon("/bin/cat", ["--state-dir", str(tmp_path)], None)
    monkeypatch.setattr(daemon.process, "poll", lambda: None)
    with pytest.raises(run.Usage, match="job 'theirs' of 127.0.0.1:[0-9]+: the daemon trains"):
        daemon.wait_listening(60)
    daemon.process.wait()


def test_an_address_that_only_the_daemon_takes_leaves_the_exit_code(launch):
    process = launch("--rest", "a:b:c", *script("sys.exit(7)"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 7 and "Traceback" not in err


def test_a_program_is_a_compiled_one_and_named_where_it_is_missing(tmp_path, monkeypatch, capsys):
    script_named_alike = tmp_path / "gossipd"
    script_named_alike.write_text("#!/bin/sh\n")
    script_named_alike.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GOSSIPD_BIN_DIR", raising=False)
    monkeypatch.setattr(command, "CARRIED", str(tmp_path / "none"))
    assert command.main(["--version"]) == 127
    assert "GOSSIPD_BIN_DIR" in capsys.readouterr().err
    os.symlink("/bin/true", tmp_path / "gossipd-core")
    assert command.find_program("gossipd") == str(tmp_path / "gossipd-core")


def test_the_daemon_hears_of_no_variable_that_is_ours(monkeypatch):
    became = []
    monkeypatch.setattr(command, "find_program", lambda name: "/bin/" + name)
    monkeypatch.setattr(os, "execve", lambda *words: became.append(words))
    monkeypatch.setenv("GOSSIPD_BIN_DIR", "/b")
    monkeypatch.setenv("GOSSIPD_LISTEN", "a:1")
    command.main(["--version"])
    ((program, line, environment),) = became
    assert (program, line) == ("/bin/gossipd", ["gossipd", "--version"])
    assert environment["GOSSIPD_LISTEN"] == "a:1" and "GOSSIPD_BIN_DIR" not in environment


def test_a_port_that_another_has_taken_is_not_asked_for_again(monkeypatch, tmp_path):
    import socket

    monkeypatch.setattr(run, "RESTART_MIN_S", 0.0)
    daemon = run.Daemon("/bin/false", ["--state-dir", str(tmp_path)], None)
    first = daemon.process
    port = daemon._line[daemon._line.index("--listen") + 1].rpartition(":")[2]
    with socket.socket() as other:
        other.bind(("", int(port)))
        other.listen()
        first.wait()
        while daemon.process is first:
            daemon.keep_alive()
        assert not daemon._line[daemon._line.index("--listen") + 1].endswith(":" + port)
        daemon.process.wait()


@pytest.fixture
def dies(monkeypatch, tmp_path):
    """A daemon that dies at once, and the clock that `gossipd run` goes by."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(run, "time", clock)
    made = run.Daemon("/bin/false", ["--state-dir", str(tmp_path)], None)
    made.process.wait()
    return made, clock


def test_the_pause_before_a_daemon_is_started_again_is_short_once_it_has_lived_long(dies, capsys):
    daemon, clock = dies
    pauses = [1, 2, 4, 8, 16, 30, 30]
    for pause in pauses:
        daemon.keep_alive()
        assert f"; again in {pause} s\n" in capsys.readouterr().err
        clock.now += pause
        daemon.keep_alive()
        daemon.process.wait()
    clock.now += 60
    daemon.keep_alive()
    assert "; again in 1 s\n" in capsys.readouterr().err


def test_a_daemon_that_cannot_be_started_again_does_not_end_the_script(dies, capsys, monkeypatch):
    daemon, clock = dies
    first, program = daemon.process, daemon._line[0]
    monkeypatch.setattr(run, "PORTS_TRIED", 0)
    for _ in range(30):
        clock.now += 10
        daemon.keep_alive()
    said = capsys.readouterr().err
    assert daemon.process is first and "cannot be started: all ports from" in said
    assert "again in 16 s" in said  # not steady: it has not lived at all
    monkeypatch.setattr(run, "PORTS_TRIED", 200)
    for line in ("/no/such/program", program):
        daemon._line[0] = line
        clock.now += 60
        daemon.keep_alive()
        clock.now += 60
        daemon.keep_alive()
    assert "cannot be started: [Errno 2] No such file" in capsys.readouterr().err
    assert daemon.process is not first
    daemon.process.wait()


@pytest.mark.parametrize("family,address", [("AF_INET", ""), ("AF_INET6", "::1")])
def test_ports_that_are_taken_are_passed_over(family, address):
    import socket

    with socket.socket(getattr(socket, family)) as taken:
        try:
            taken.bind((address, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        taken.listen()
        port = taken.getsockname()[1]
        assert run.free_port(port) > port
