"""A small TCP proxy that makes a good wire bad: delays, breaking connections, silent cuts.

One Proxy stands before one daemon, which advertises the proxy's address; incoming connections come
through it. A daemon's own dials pass the other daemons' proxies. TCP hides lost packets, so a lossy
line appears here as it does to a program: as stalls and broken connections.
"""

import asyncio
import random
import threading

CHUNK_BYTES = 16 * 1024
READ_AHEAD_CHUNKS = 256  # in transit, in one direction


class Proxy:
    def __init__(self, port, target, delay_s=0.0, bytes_until_reset=None, seed=1):
        """`delay_s` is one way. `bytes_until_reset` is the mean number of bytes after which a
        connection breaks, or None.
        """
        self.port, self.target, self.delay_s, self.bytes_until_reset = (
            port,
            target,
            delay_s,
            bytes_until_reset,
        )
        self.random = random.Random(seed)
        self.connections = self.resets = self.bytes = 0
        self._writers = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        ready.wait()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def cut(self):
        """From now on bytes go in and none come out; connections stay open."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self):
        self._loop.call_soon_threadsafe(self._open.set)

    def reset_all(self):
        self._loop.call_soon_threadsafe(lambda: [w.transport.abort() for w in list(self._writers)])

    def close(self):
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    async def _run(self, ready):
        self._loop = asyncio.get_running_loop()
        self._open, self._closed = asyncio.Event(), asyncio.Event()
        self._open.set()
        async with await asyncio.start_server(self._serve, "127.0.0.1", self.port):
            ready.set()
            await self._closed.wait()

    async def _serve(self, reader, writer):
        self.connections += 1
        host, port = self.target.rsplit(":", 1)
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        ends = (writer, far_writer)
        self._writers.update(ends)
        budget = [
            (
                self.random.expovariate(1 / self.bytes_until_reset)
                if self.bytes_until_reset
                else float("inf")
            )
        ]
        ways = [
            asyncio.create_task(self._way(a, b, budget))
            for a, b in ((reader, far_writer), (far_reader, writer))
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # close() ends handlers this way; asyncio's streams would complain
        for way in ways:
            way.cancel()
        for end in ends:
            end.transport.abort()
        self._writers.difference_update(ends)

    async def _way(self, reader, writer, budget):
        """Until one end is closed, or the budget of bytes is spent. Reading and writing go on side
        by side: delay costs no throughput.
        """
        queue = asyncio.Queue(READ_AHEAD_CHUNKS)

        async def read():
            while data := await reader.read(CHUNK_BYTES):
                await queue.put((self._loop.time() + self.delay_s, data))
            await queue.put(None)

        reading = asyncio.create_task(read())
        try:
            while (item := await queue.get()) is not None:
                due, data = item
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._open.wait()
                self.bytes += len(data)
                budget[0] -= len(data)
                if budget[0] < 0:
                    self.resets += 1
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            reading.cancel()
