"""A switch whose paths have a delay: it holds each frame until its time and passes it on.

    shaped_delay.py MILLISECONDS DEVICE...      as root, in place of a bridge over these devices

Prints `ready`, works until its standard input ends, then prints what it saw as a line of JSON:
frames, those that found no room (as in a full queue of tbf), how late frames left beyond the delay,
in milliseconds (median and 99th percentile), and its processor time.

A frame's delay counts from the kernel's time of its arrival. Frames travel with their virtio
headers, so that what the nodes' kernels left to the devices (checksums, division of large segments)
stays as it would be on a bridge.
"""

import collections
import json
import os
import select
import socket
import struct
import sys
import time

SOL_PACKET, PACKET_STATISTICS, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 6, 15, 23
ETH_P_ALL = 3
SO_TIMESTAMPNS, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 35, 32, 33
BUFFER_BYTES = 64 << 20
VIRTIO_HEADER = 10  # bytes before each frame
LARGEST_FRAME = VIRTIO_HEADER + (1 << 16) + 64
READS_AT_ONCE = 64  # of one device, before frames that are due get their turn
SHORTEST_SLEEP_S = 0.0002  # gathers frames
BIN_NS, BINS = 20_000, 50_000  # the histogram of how late frames were: up to one second


class Port:
    """One device: the frames that came from it, each with the time at which it may leave."""

    def __init__(self, device):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        for level, option, value in (
            (SOL_PACKET, PACKET_VNET_HDR, 1),
            (SOL_PACKET, PACKET_IGNORE_OUTGOING, 1),
            (socket.SOL_SOCKET, SO_TIMESTAMPNS, 1),
            (socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES),
            (socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES),
        ):
            self.socket.setsockopt(level, option, value)
        self.socket.bind((device, ETH_P_ALL))
        self.socket.setblocking(False)
        self.held = collections.deque()

    def read(self, delay_ns):
        for _ in range(READS_AT_ONCE):
            try:
                frame, notes, _, _ = self.socket.recvmsg(LARGEST_FRAME, 64)
            except BlockingIOError:
                return
            came = time.time_ns()
            for _, kind, value in notes:
                if kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = struct.unpack("qq", value)
                    came = seconds * 1_000_000_000 + nanoseconds
            self.held.append((came + delay_ns, frame))

    def unread(self):
        """Frames that the kernel had no room for."""
        counts = self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        return struct.unpack("II", counts)[1]


class Switch:
    def __init__(self, delay_ms, devices):
        self.delay_ns = round(delay_ms * 1e6)
        self.ports = [Port(device) for device in devices]
        self.learnt = {}  # Ethernet address → port
        self.frames = self.lost = 0
        self.late = [0] * (BINS + 1)

    def send(self, source, frame):
        target, sender = frame[VIRTIO_HEADER:][:6], frame[VIRTIO_HEADER + 6 :][:6]
        self.learnt[sender] = source
        known = self.learnt.get(target)
        for port in [known] if known else self.ports:
            if port is not source:
                try:
                    port.socket.send(frame)
                except OSError:  # the queue of the device is full, or the device is gone
                    self.lost += 1

    def pass_on(self):
        """Sends what is due; the time of what is due next, or None."""
        soonest = None
        for port in self.ports:
            while port.held:
                due, frame = port.held[0]
                late = time.time_ns() - due
                if late < 0:
                    soonest = due if soonest is None else min(soonest, due)
                    break
                port.held.popleft()
                self.send(port, frame)
                self.frames += 1
                self.late[min(late // BIN_NS, BINS)] += 1
        return soonest

    def work(self, until):
        """Until there is something to read from `until`."""
        sockets = {port.socket: port for port in self.ports}
        while True:
            due = self.pass_on()
            wait = None
            if due is not None:
                wait = max(SHORTEST_SLEEP_S, (due - time.time_ns()) / 1e9)
            readable, _, _ = select.select([*sockets, until], [], [], wait)
            if until in readable:
                return
            for one in readable:
                sockets[one].read(self.delay_ns)

    def late_ms(self, share):
        """What this share of the frames did not exceed."""
        left = share * self.frames
        for place, count in enumerate(self.late):
            left -= count
            if left <= 0:
                break
        return round((place + 1) * BIN_NS / 1e6, 2)

    def seen(self):
        return {
            "frames": self.frames,
            "lost": self.lost + sum(port.unread() for port in self.ports),
            "late_ms": [self.late_ms(0.5), self.late_ms(0.99)] if self.frames else [],
            "cpu_s": round(time.process_time(), 1),
        }


def main():
    switch = Switch(float(sys.argv[1]), sys.argv[2:])
    try:  # a cable waits for no processor
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pass
    print("ready", flush=True)
    switch.work(sys.stdin)
    print(json.dumps(switch.seen()), flush=True)


if __name__ == "__main__":
    main()
