"""A cluster whose members prove themselves by certificates of their operator's authority, which the
openssl command makes.
"""

import json
import os
import signal
import subprocess
import unittest
from datetime import datetime, timedelta, timezone

from cluster import ClusterTest, gossipctl, wait_for

EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """Signs certificates for nodes; all its files are in `folder`."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.ca, self.ca_key = self.path(f"{name}.ca.pem"), self.path(f"{name}.ca.key")
        self.openssl(
            "req",
            "-x509",
            *EC_KEY,
            "-days",
            "30",
            "-subj",
            f"/CN={name}",
            "-keyout",
            self.ca_key,
            "-out",
            self.ca,
        )
        open(self.path(f"{name}.index"), "w", encoding="ascii").close()
        with open(self.path(f"{name}.conf"), "w", encoding="ascii") as out:
            out.write(
                "[ca]\ndefault_ca = this\n"
                f"[this]\ndatabase = {self.path(name + '.index')}\nnew_certs_dir = {folder}\n"
                f"rand_serial = yes\ncertificate = {self.ca}\nprivate_key = {self.ca_key}\n"
                "default_md = sha256\ndefault_crl_days = 30\npolicy = any\nunique_subject = no\n"
                "x509_extensions = node\n[any]\ncommonName = supplied\n"
                "[node]\nextendedKeyUsage = clientAuth,serverAuth\n"
            )

    def path(self, file):
        return os.path.join(self.folder, file)

    @staticmethod
    def openssl(*arguments):
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"openssl {' '.join(arguments)}: {done.stderr}"

    def ca_command(self, *arguments):
        self.openssl(
            "ca", "-batch", "-notext", "-config", self.path(f"{self.name}.conf"), *arguments
        )

    def settings(self, node, begins="20200101000000Z", ends="20991231235959Z"):
        """The settings of a node with a certificate of this authority, as keywords of
        Cluster.node().
        """
        files = [self.path(f"{self.name}-{node}.{kind}") for kind in ("pem", "key", "csr")]
        self.openssl("req", *EC_KEY, "-subj", f"/CN={node}", "-keyout", files[1], "-out", files[2])
        self.ca_command("-startdate", begins, "-enddate", ends, "-in", files[2], "-out", files[0])
        return {
            "peer_tls__ca": self.ca,
            "peer_tls__certificate": files[0],
            "peer_tls__key": files[1],
        }

    def revoke(self, certificate):
        """Adds the certificate to the revocation list that is appended to the authority's file."""
        self.ca_command("-revoke", certificate)
        self.append_list()

    def append_list(self, *options):
        revoked = self.path(f"{self.name}.crl")
        self.ca_command("-gencrl", *options, "-out", revoked)
        with open(revoked, encoding="ascii") as text, open(self.ca, "a", encoding="ascii") as out:
            out.write(text.read())


class Certificates(ClusterTest):
    def setUp(self):
        self.authority = Authority(self.cluster.directory, "authority")
        self.nodes = [
            self.cluster.found(
                self.cluster.job(),
                key="",
                shard="1/3",
                trainer__min_step_ms=20,
                **self.authority.settings("box1"),
            )
        ]
        for i in (2, 3):
            self.nodes.append(
                self.joiner(f"box{i}", shard=f"{i}/3", **self.authority.settings(f"box{i}")).start()
            )
        for node in self.nodes:
            node.wait_linked(2)

    def joiner(self, name, **settings):
        return self.cluster.joiner(
            name, self.nodes[0], trainer__min_step_ms=20, **{"key": "", **settings}
        )

    def wait_said(self, node, *words):
        """Waits until one refusal in the status contains all of `words`, and so does the log."""

        def said():
            return next(
                (
                    r
                    for r in node.status()["refusals"]
                    if all(w in r["code"] + " " + r["reason"] for w in words)
                ),
                None,
            )

        refusal = wait_for(f"{node.name} says {words}", said)
        wait_for(f"the log of {node.name} says so", lambda: refusal["reason"] in node.log())

    def assert_unchanged(self, count=3):
        goals = [(n, n.status()["step"] + 30) for n in self.nodes]
        for node, goal in goals:
            node.wait_step(goal)
            self.assertEqual(count, node.status()["members_alive"])
            self.assertEqual({n.name for n in self.nodes}, set(node.members()))

    def assert_refused(self, stranger, its_words, our_words):
        stranger.start()
        self.wait_said(stranger, *its_words)
        self.wait_said(self.nodes[0], *our_words)
        self.assertEqual("joining", stranger.status()["phase"])
        self.assertEqual(0, stranger.status()["links_open"])
        stranger.kill()

    def test_three_train_and_a_node_without_a_valid_certificate_of_their_authority_is_refused(self):
        links = self.nodes[0].links()
        wait_for(
            "they exchange",
            lambda: all(
                self.nodes[0].links()[n]["deltas_applied"] > links[n]["deltas_applied"]
                for n in links
            ),
        )
        self.nodes[0].wait_log("event=peer-tls certificate=\"/CN=box1\"")
        said = self.nodes[0].ctl("doctor")
        self.assertRegex(said.stdout, r"(?m)^ok +key +this cluster uses certificates")

        other = Authority(self.cluster.directory, "other")
        self.assert_refused(
            self.joiner("stranger", **other.settings("stranger")),
            ("certificate is not accepted", "CN=box1"),
            ("wrong-certificate", "another authority"),
        )
        self.assert_refused(
            self.joiner("expired", **self.authority.settings("expired", ends="20200201000000Z")),
            ("does not accept our certificate",),
            ("wrong-certificate", "CN=expired", "expired"),
        )
        key = os.path.join(self.cluster.directory, "other.key")
        self.assertEqual(0, gossipctl("key", "generate", key).returncode)
        self.assert_refused(
            self.joiner("key-holder", key=key),
            ("its cluster uses certificates",),
            ("wrong-certificate", "cluster key"),
        )
        self.assert_refused(
            self.joiner("plain", key="none"),
            ("peer speaks TLS",),
            ("peer speaks without encryption",),
        )
        with self.subTest("TLS without a certificate"):
            host_and_port = self.nodes[0].address
            subprocess.run(
                ["openssl", "s_client", "-connect", host_and_port, "-tls1_3"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=60,
            )
            self.wait_said(self.nodes[0], "wrong-certificate", "shows no certificate")
        status, metrics = self.nodes[0].request("GET", "/metrics")
        self.assertEqual(200, status)
        self.assertRegex(
            metrics, r'gossipd_inbound_rejected_total\{reason="wrong-certificate"\} [1-9]'
        )
        self.assert_unchanged()

        for words in (("key", "list"), ("key", "use", "0123456789abcdef"), ("key", "install", key)):
            done = self.nodes[0].ctl(*words)
            self.assertEqual(4, done.returncode, done.stderr)
            self.assertIn("this cluster uses certificates", done.stderr)

    def test_a_certificate_is_renewed_while_training_and_a_revoked_one_is_shut_out(self):
        first, second, third = self.nodes
        for node in (first, second):  # the node's own is renewed; the file names stay the same
            self.authority.settings(node.name)
            node.signal(signal.SIGHUP)
            node.wait_log("event=peer-tls-reloaded")
        self.authority.revoke(third.settings["peer_tls.certificate"])
        for node in (first, second):
            node.signal(signal.SIGHUP)
        for node in (first, second):
            node.wait(
                "the third is gone", lambda s: s["members_alive"] == 2 and s["links_open"] == 1
            )
        self.wait_said(third, "does not accept our certificate", "revoked")
        self.wait_said(first, "wrong-certificate", "CN=box3", "revoked")
        # An unreadable file changes nothing.
        os.truncate(self.authority.ca, 0)
        first.signal(signal.SIGHUP)
        wait_for(
            "it warns",
            lambda: [
                w
                for w in json.loads(first.request("GET", "/v1/status")[1])["warnings"]
                if "as they were" in w["text"]
            ],
        )
        first.wait_step(first.status()["step"] + 30)
        self.assertEqual("open", first.links()["box2"]["state"])

    def test_a_revocation_list_that_has_expired_is_reported_until_a_newer_one_is_there(self):
        first, second, _ = self.nodes
        self.authority.append_list(
            "-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20200201000000Z"
        )
        first.signal(signal.SIGHUP)
        said = "peer_tls.ca: the revocation list of /CN=authority has expired"
        first.wait("the status says so", lambda s: any(said in w["text"] for w in s["warnings"]))
        first.wait_log(said)
        self.wait_said(first, "wrong-certificate", "CRL has expired", "put a newer one there")
        self.wait_said(second, "wrong-certificate", "its revocation list has expired")
        self.authority.append_list()
        first.signal(signal.SIGHUP)
        first.wait_linked(2)
        self.assertFalse([w for w in first.status()["warnings"] if "revocation" in w["text"]])

    def test_a_certificate_that_expires_while_its_node_runs_is_reported_until_renewed(self):
        end = datetime.now(timezone.utc) + timedelta(seconds=75)
        settings = self.authority.settings("box4", ends=end.strftime("%Y%m%d%H%M%SZ"))
        node = self.joiner("box4", **settings).start()
        node.wait_phase("training")
        said = "peer_tls.certificate: /CN=box4 has expired"
        node.wait(
            "the status says so", lambda s: any(said in w["text"] for w in s["warnings"]), 150
        )
        node.wait_log(said)
        self.authority.settings("box4")
        node.signal(signal.SIGHUP)
        node.wait(
            "a renewed one has ended it",
            lambda s: not any(said in w["text"] for w in s["warnings"]),
        )

    def test_a_certificate_that_has_expired_before_the_start_is_reported_once(self):
        settings = self.authority.settings("box4", ends="20200201000000Z")
        node = self.joiner("box4", **settings).start()
        # three looks, one a second
        status = node.wait("a look or two", lambda s: s["uptime_s"] > 3)
        said = [w for w in status["warnings"] if "has expired" in w["text"]]
        self.assertEqual(1, len(said), status["warnings"])

    def test_files_that_cannot_work_are_refused_at_the_start(self):
        good = self.authority.settings("box4")
        loose = self.authority.settings("box5")
        os.chmod(loose["peer_tls__key"], 0o644)
        cases = {
            "two of three": ({**good, "peer_tls__key": ""}, "belong together"),
            "and a key": ({**good, "key": self.cluster.key}, "exclude each other"),
            "no such file": (
                {**good, "peer_tls__ca": "/nowhere.pem"},
                "/nowhere.pem cannot be read",
            ),
            "everybody may read the key": (loose, "chmod 600"),
            "not the certificate's key": (
                {**good, "peer_tls__key": self.authority.settings("box6")["peer_tls__key"]},
                "is not the key of",
            ),
        }
        for i, (name, (settings, words)) in enumerate(cases.items()):
            with self.subTest(name):
                node = self.joiner(f"wrong{i}", **settings).start()
                self.assertEqual(78, node.exit_code())
                self.assertIn(words, node.log())


if __name__ == "__main__":
    unittest.main()
