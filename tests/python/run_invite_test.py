"""gossipd run takes an invite off its command line, however that is written."""

import os

import pytest

from gossipd import run_invite


@pytest.mark.parametrize(
    "written,joins",
    [
        (["--join", "gossip1abc"], "gossip1abc"),
        (["--join=gossip1abc"], "gossip1abc"),
        (["--join", "gossip1abc", "--join=box2:1", "--join", "box3"], "gossip1abc,box2:1,box3"),
        (["--join", "box2", "--join", "gossip1abc"], "box2,gossip1abc"),
        (["--join", "GOSSIP1ABC"], "GOSSIP1ABC"),
        (["--join", "'gossip1abc'"], "'gossip1abc'"),
        (["--join", "gossipd --join gossip1abc"], "gossipd --join gossip1abc"),
        (["--join=box2,gossip2abc"], "box2,gossip2abc"),
        (["--set", "join=gossip1abc"], "gossip1abc"),
        (["--set=join=gossip1abc", "--set", "join=gossip1xyz"], "gossip1xyz"),
        (["--set", "join=gossip1abc", "--join", "box2"], "box2"),
    ],
)
def test_an_invite_on_the_command_line_is_taken_off_it(written, joins, monkeypatch):
    became = []
    monkeypatch.setattr(os, "execv", lambda program, line: became.append(line))
    monkeypatch.setenv("GOSSIPD_JOIN", "gossip1old")
    run_invite.hide_invite([*written, "--set", "a=b", "--rest", "a"], ["gossip1"])
    (line,) = became
    rest = ["--set", "a=b", "--rest", "a"]
    assert line[1:] == ["-c", run_invite.again(), "run", *rest, "--", "gossip1"]
    assert os.environ["GOSSIPD_JOIN"] == joins


@pytest.mark.parametrize(
    "written",
    [
        ["--name", "gossip1"],
        ["--state-dir=/data/gossip1"],
        ["--set", "note=gossip1"],
        ["--jion", "gossip1abc"],
        ["--join", "box1:7610", "--name", "gossip1"],
        ["--join", "@gossip.invite", "--set"],
        ["--join"],
    ],
)
def test_what_only_looks_like_an_invite_stays_where_it_is(written, monkeypatch):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it was taken"))
    monkeypatch.setenv("GOSSIPD_JOIN", "")
    assert run_invite.hide_invite(written, ["--join", "gossip1abc"]) == written
    assert os.environ["GOSSIPD_JOIN"] == ""
