"""A NumPy loop attached by the package gossipd, with the ledger of attached.py.

    PYTHONPATH=tools/python/src attached_loop.py SOCKET --counters FILE [--seed N] [--step-ms MS] …
"""

import argparse
import time

import attached
import numpy
from gossipd import session, wire

import gossipd


def note_what_is_told(ledger):
    """Writes into the ledger the samples of each STEP and DONE, before and after it is sent, and
    how often the loop has been attached.
    """

    def noting(make):
        def made(sequence, steps, samples, *rest):
            ledger.note_telling(samples, False)
            return make(sequence, steps, samples, *rest)

        return made

    def noting_sent(send):
        def sent(*arguments):
            result = send(*arguments)
            if result is not False:
                ledger.note_telling(ledger.read()["telling"], True)
            return result

        return sent

    def noting_attaches(begin):
        def begun(*arguments):
            begin(*arguments)
            ledger.write(attaches=ledger.read()["attaches"] + 1)

        return begun

    def noting_attach(make):
        def made(*words):
            ledger.note_telling(words[-1], False)  # counts if the run is known
            return make(*words)

        return made

    wire.step, wire.done = noting(wire.step), noting(wire.done)
    wire.attach = noting_attach(wire.attach)
    connection = session._Connection
    connection.__init__ = noting_attaches(connection.__init__)
    connection.send_step = noting_sent(connection.send_step)
    connection.send_done = noting_sent(connection.send_done)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("socket")
    parser.add_argument("--counters", required=True)
    parser.add_argument("--save")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=5)
    arguments = parser.parse_args()

    ledger = attached.Ledger(arguments.counters)
    note_what_is_told(ledger)
    random = numpy.random.default_rng(arguments.seed)
    params = {
        name: random.normal(0, 1, shape).astype(numpy.float32)
        for _, shape, name in attached.segments_of(1000)
    }
    g = gossipd.attach(params, samples_per_step=32, socket=arguments.socket)
    params = g.params
    while not g.finished:
        for values in params.values():
            noise = random.normal(0, 0.1, values.size).astype(numpy.float32)
            values -= numpy.float32(0.02) * (values - 1 + noise)
        params = g.step(params, loss=float(numpy.mean((params["first.weight"] - 1) ** 2)))
        ledger.write(steps=g.steps, samples=g.samples, state=2)
        time.sleep(arguments.step_ms / 1000)
    g.detach()
    ledger.write(state=5)
    if arguments.save:
        numpy.save(arguments.save, numpy.concatenate(list(g.params.values())))


if __name__ == "__main__":
    main()
