"""What programs rely on: REST as openapi.json describes it, and a log that parses."""

import http.client
import json
import os
import unittest

import jsonschema

from api import Api
from cluster import ClusterTest, gossipctl, wait_for

METASCHEMA = {  # of what OpenAPI 3.1 asks for beyond the schemas themselves
    "type": "object",
    "required": ["openapi", "info", "paths"],
    "properties": {
        "openapi": {"pattern": "^3\\.1\\.\\d+$"},
        "info": {"type": "object", "required": ["title", "version"]},
        "paths": {
            "additionalProperties": {
                "propertyNames": {"enum": ["get", "post", "put", "delete", "patch"]},
                "additionalProperties": {
                    "type": "object",
                    "required": ["operationId", "summary", "responses"],
                    "properties": {
                        "responses": {
                            "propertyNames": {"pattern": "^([1-5]\\d\\d|default)$"},
                            "additionalProperties": {
                                "anyOf": [{"required": ["description"]}, {"required": ["$ref"]}]
                            },
                        }
                    },
                },
            }
        },
    },
}


class OpenApi(ClusterTest):
    def setUp(self):
        self.api = Api()

    def call(self, node, method, path, body=None):
        """The status of an answer that has the shape described."""
        connection = http.client.HTTPConnection(node.rest, timeout=20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            kind = answer.getheader("Content-Type", "")
            # a stream has no end: its head tells what it is
            text = "" if kind.startswith("text/event-stream") else answer.read().decode()
        finally:
            connection.close()
        self.assertEqual([], self.api.check(method, path, answer.status, kind, text))
        return answer.status

    def look_at(self, node):
        """Each route that only shows something, whatever state the node is in."""
        return {
            path: self.call(node, "GET", path)
            for method, path in self.api.operations()
            if method == "GET"
        }

    def test_the_document_is_openapi_3_1(self):
        jsonschema.Draft202012Validator(METASCHEMA).validate(self.api.document)
        for schema in self.api.document["components"]["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)

    def test_real_answers_of_real_daemons_have_the_shapes_described(self):
        job = self.cluster.job(budget_samples=20_000, evaluate_every_samples=4_000)
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        first = self.cluster.founder(job, shard="1/2", trainer__min_step_ms=10)
        second = self.cluster.joiner("box2", first, shard="2/2", trainer__min_step_ms=10).start()
        second.wait_log("event=rest ")
        shown = self.look_at(second)  # it joins, and knows neither job nor members
        self.assertEqual((503, 404), (shown["/readyz"], shown["/v1/job"]))

        first.start()
        second.wait_linked(1)
        second.wait("an evaluation", lambda s: s["evaluation"])
        for node in (first, second):
            self.assertEqual({200}, set(self.look_at(node).values()))
        self.command_everything(first, second)
        for method, path in sorted(self.api.operations()):
            self.assertIn(
                (method, path),
                self.api.called,
                "no daemon was asked for it with success; call it in command_everything()",
            )

    def command_everything(self, first, second):
        """A new route that changes something is to be called here: once so that it succeeds, and
        once so that it is refused.
        """
        wrong = {"id": "0123456789abcdef", "no": "such thing"}
        for method, path in self.api.operations():
            if method == "POST" and path not in (
                "/v1/cluster/leave",
                "/v1/training/pause",
                "/v1/training/resume",
                "/v1/checkpoint",
            ):
                self.assertGreaterEqual(self.call(first, method, path, wrong), 400)

        self.assertEqual(202, self.call(first, "POST", "/v1/training/pause"))
        self.assertEqual(202, self.call(first, "POST", "/v1/training/resume"))
        self.assertEqual(200, self.call(first, "POST", "/v1/checkpoint"))
        self.assertEqual(
            202, self.call(first, "POST", "/v1/job/extend", {"samples": 1_000_000_000})
        )
        self.change_the_key(first)

        self.assertEqual(409, self.call(second, "POST", "/v1/cluster/join"))
        self.assertEqual(202, self.call(second, "POST", "/v1/cluster/leave"))
        second.wait_phase("left")
        self.look_at(second)
        self.assertEqual(409, self.call(second, "POST", "/v1/cluster/leave"))
        wait_for("it is known", lambda: first.members()["box2"]["state"] == "left")
        self.look_at(first)
        gone = {"id": second.status()["id"]}
        self.assertEqual(202, self.call(first, "POST", "/v1/members/forget", gone))
        self.assertEqual(404, self.call(first, "POST", "/v1/members/forget", gone))
        self.assertEqual(202, self.call(second, "POST", "/v1/cluster/join", {}))
        self.start_the_next_job(first)

    def start_the_next_job(self, running):
        short = {"budget_samples": 2_000, "warmup_samples": 500}
        following = {"file": self.cluster.job(file="next.toml", name="next", **short)}
        self.assertEqual(409, self.call(running, "POST", "/v1/job/start", following))
        job = self.cluster.job(file="short.toml", **short)
        alone = self.cluster.founder(job, name="alone").start()
        alone.wait_phase("finished")
        self.assertEqual(400, self.call(alone, "POST", "/v1/job/start", {"file": "/nope"}))
        self.assertEqual(202, self.call(alone, "POST", "/v1/job/start", following))
        wait_for("the next job", lambda: alone.get("/v1/job")["number"] == 2)
        self.look_at(alone)

    def change_the_key(self, node):
        key = os.path.join(self.cluster.directory, "new.key")
        self.assertEqual(0, gossipctl("key", "generate", key).returncode)
        old = node.get("/v1/keys")["keys"][0]["id"]
        self.assertEqual(200, self.call(node, "POST", "/v1/keys/install", {"file": key}))
        new = next(k["id"] for k in node.get("/v1/keys")["keys"] if k["id"] != old)
        self.assertEqual(409, self.call(node, "POST", "/v1/keys/retire", {"id": old}))
        self.assertEqual(200, self.call(node, "POST", "/v1/keys/use", {"id": new}))
        self.assertEqual(200, self.call(node, "POST", "/v1/keys/use", {"id": old}))
        self.assertEqual(200, self.call(node, "POST", "/v1/keys/retire", {"id": new}))


if __name__ == "__main__":
    unittest.main()
