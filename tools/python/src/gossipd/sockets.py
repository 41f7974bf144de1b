"""The daemon's socket: a path of any length, and packets with descriptors."""

from __future__ import annotations

import os
import socket
import struct
from typing import List, Optional, Tuple

from . import wire

SOCKET_NAME = "trainer.sock"
SOCKET_PATH_MAX = 107


def connect(path: str) -> socket.socket:
    """A connection to the daemon's socket, however long its path is."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
            made.connect(path)
            return made
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        try:
            made.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        finally:
            os.close(folder)
        return made
    except BaseException:
        made.close()
        raise


def receive_with_descriptors(sock: socket.socket) -> Tuple[bytes, List[int], int, object]:
    """One packet and the descriptors that came with it, each of which the caller must close."""
    size = struct.calcsize("i")
    room = wire.PACKET_BYTES_MAX + 1, socket.CMSG_SPACE(4 * size), socket.MSG_CMSG_CLOEXEC
    try:
        packet, ancillary, flags, address = sock.recvmsg(*room)
    except ConnectionResetError:
        # Of a daemon that has gone with something of ours unread: told once, before its last words.
        packet, ancillary, flags, address = sock.recvmsg(*room)
    descriptors: List[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            count = len(data) // size
            descriptors += struct.unpack(f"{count}i", data[: count * size])
    return packet, descriptors, flags, address


def default_socket(named: Optional[str]) -> str:
    """`named`, or the socket of the daemon's default state directory."""
    if named:
        return named
    state = os.environ.get("GOSSIPD_STATE_DIR")
    if not state:
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        state = "/var/lib/gossipd" if os.geteuid() == 0 else os.path.join(home, "gossipd")
    return os.path.join(state, SOCKET_NAME)
