"""daemon/rest/openapi.json, and whether a daemon's answers have the shapes that it describes.

Stricter than the document in one point: it allows later releases to add properties, and here each
property that it does not name is a finding.
"""

import json
import os

import jsonschema

DOCUMENT = os.path.join(os.path.dirname(__file__), "../../daemon/rest/openapi.json")


def closed(schema):
    """The same schema, in which an object has no properties but those that are named."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        copy.setdefault("additionalProperties", False)
    return copy


class Api:
    def __init__(self):
        with open(DOCUMENT, encoding="utf-8") as file:
            self.document = json.load(file)
        self.components = {
            **self.document["components"],
            "schemas": {
                name: closed(schema)
                for name, schema in self.document["components"]["schemas"].items()
            },
        }
        self.validators = {}
        self.called = set()  # operations that were answered as they are meant to, not refused

    def operations(self):
        return {
            (method.upper(), path): operation
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def follow(self, node):
        while "$ref" in node:
            target = self.document
            for word in node["$ref"].removeprefix("#/").split("/"):
                target = target[word]
            node = target
        return node

    def validator(self, schema):
        key = json.dumps(schema, sort_keys=True)
        if key not in self.validators:
            whole = {**closed(schema), "components": self.components}
            self.validators[key] = jsonschema.Draft202012Validator(whole)
        return self.validators[key]

    def check(self, method, path, status, content_type, body):
        """What is wrong with an answer: sentences."""
        responses = self.operations()[method, path]["responses"]
        response = responses.get(str(status)) or (responses["default"] if status >= 400 else None)
        if response is None:
            return [f"{method} {path}: status {status} is not described"]
        content = self.follow(response)["content"]
        kind = content_type.partition(";")[0]
        if kind not in content:
            return [f"{method} {path}: {status} has the type {kind}, not {', '.join(content)}"]
        if status < 300:
            self.called.add((method, path))
        if not kind.endswith("json"):
            return []
        errors = self.validator(content[kind]["schema"]).iter_errors(json.loads(body))
        return [
            f"{method} {path}: {status} at {error.json_path}: {error.message[:300]}"
            for error in errors
        ]
