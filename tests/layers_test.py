#!/usr/bin/env python3
"""tests/layers_test.py - the arrows between our libraries, as a test.

    tests/layers_test.py [ROOT]       complains about every file that breaks a rule
    tests/layers_test.py --self-test  also plants a violation of each rule: each must be found
    tests/layers_test.py --graph      prints which of core's folders each of them includes

Reads text only: what a file includes and which words its code uses. Comments and strings count as
code only where that does no harm. tests/style_test.py checks layout, widths and lengths.
"""

import pathlib
import re
import shutil
import sys
import tempfile

SOURCE_SUFFIXES = {".h", ".cpp", ".inc"}
FOLDERS = ("core", "net", "models", "daemon", "tools", "tests", "deploy")

# Libraries whose subfolders include each other one way only.
WITHOUT_CIRCLES = ("core", "models", "daemon")

# Which of our folders each may include; the longest matching prefix counts. tests/ may include all.
OURS = {
    "core": {"core"},
    "net": {"core", "net"},
    "models": {"core", "models"},
    "daemon": {"core", "net", "models", "daemon"},
    "tools": {"core", "net", "models", "tools"},
    "tools/gossipctl": {"core", "net", "models", "tools"},  # models: checkpoints without LibTorch
    "tools/lab": {"core", "models", "tools"},  # virtual time has no sockets
}

# Third-party headers, and the only folders that may include them. tests/ may include all.
THIRD_PARTY = {
    r"boost/": {"net"},
    r"openssl/": {"net"},
    r"(torch|ATen|c10)/": {"models", "tools/bench"},  # the bench compares with a bare loop
    r"toml\+\+/": {"models", "tools/lab"},  # a scenario lays files over each other
    r"zlib\.h": {"models"},
    r"(png|stb_image_resize)\.h": {"models"},
    r"turbojpeg\.h": {"models", "tools/bench"},  # the bench makes its pictures
    r"spdlog/": {"daemon"},
    r"prometheus/": {"daemon"},
    r"CLI/": {"daemon", "tools"},
    r"benchmark/": {"tools"},
    r"doctest": set(),
}

# core decides; it has no threads, clock, randomness, files or sockets of its own. sys/mman.h only
# tells the kernel how memory is used, which decides nothing.
CORE_HEADERS = re.compile(
    r"(thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token"
    r"|random|ctime|fstream|iostream|filesystem|unistd\.h|time\.h|signal\.h|pthread\.h"
    r"|sys/(?!mman\.h).*|netinet/.*|arpa/.*)$"
)
CORE_WORDS = {
    r"_clock::now\b": "asks a clock; time is passed in",
    r"\brandom_device\b": "draws randomness of its own; a seed is passed in",
    r"\bstd::j?thread\b": "starts a thread; the driver has the threads",
    r"\bstd::(shared_|recursive_)?mutex\b": "has a mutex; core belongs to one thread",
    r"\bthis_thread\b": "waits; core returns deadlines",
    r"\b(getenv|srand|std::rand|gettimeofday|clock_gettime)\s*\(": (
        "reaches for the process or its clock"
    ),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)
TYPE = re.compile(
    r"^(?:class|struct|enum class) (\w+)(?: final)?\s*(?::(?!:)[^;{]*)?\{", re.MULTILINE
)


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def longest_prefix(path, table):
    found = [prefix for prefix in table if path.startswith(prefix + "/")]
    return table[max(found, key=len)] if found else None


def check_includes(path, text):
    folder = path.split("/")[0]
    if folder == "tests":
        return
    for quote, target in INCLUDE.findall(text):
        if quote == '"':
            first = target.split("/")[0]
            if "/" not in target or first not in FOLDERS:
                yield f'includes "{target}": our headers are included from the root'
            elif first not in longest_prefix(path, OURS):
                yield f'includes "{target}": {folder} may not use {first}'
            continue
        for pattern, allowed in THIRD_PARTY.items():
            if re.match(pattern, target) and not any(
                (path + "/").startswith(place + "/") for place in allowed
            ):
                yield f"includes <{target}>: only {', '.join(sorted(allowed)) or 'tests'} may"
        if folder == "core" and CORE_HEADERS.match(target):
            yield (
                f"includes <{target}>: core has no threads, clock, randomness, files or sockets"
                " of its own"
            )


def check_source(path, text):
    yield from check_includes(path, text)
    if path.startswith("core/"):
        code = without_comments(text)
        for pattern, why in CORE_WORDS.items():
            if match := re.search(pattern, code):
                yield f"'{match.group(0)}' {why}"
    if path.endswith((".h", ".inc")) and not text.startswith(f"// {path} - "):
        yield f"does not begin with '// {path} - what it is'"
    if path.endswith(".h") and "#pragma once" not in text:
        yield "has no #pragma once"


def room(path):
    """The subfolder that a path lies in; core/node.h is what core/node/ implements."""
    return path.split("/")[1].removesuffix(".h")


def arrows_between_rooms(library, texts):
    """Room → {room it includes: [(path, header)]}, of a library's sources as (path, text)."""
    arrows = {}
    for path, text in texts:
        for _, target in INCLUDE.findall(text):
            if target.startswith(library + "/") and room(target) != room(path):
                inside = arrows.setdefault(room(path), {})
                inside.setdefault(room(target), []).append((path, target))
    return arrows


def reaches(arrows, start, goal):
    """Folders from start to goal, both included, by the arrows; None: there is no way."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop(0)
        if way[-1] == goal:
            return way
        for folder in sorted(set(arrows.get(way[-1], ())) - seen):
            seen.add(folder)
            ways.append([*way, folder])
    return None


def check_circles(library, texts):
    """Complaints about includes between a library's subfolders that are part of a circle."""
    arrows = arrows_between_rooms(library, texts)
    for source, targets in sorted(arrows.items()):
        for target, includes in sorted(targets.items()):
            if way := reaches(arrows, target, source):
                for path, header in includes:
                    yield f'{path}: includes "{header}": a circle {" → ".join([source, *way])}'


def types_of(text):
    """Full names of the types that a header defines outside of other types."""
    spaces = [(m.start(), m.group(1)) for m in NAMESPACE.finditer(text)]
    for match in TYPE.finditer(text):
        inside = [name for at, name in spaces if at < match.start()]
        yield "::".join(inside[-1:] + [match.group(1)])


def check_tree(root):
    """All complaints, as 'path: what'."""
    complaints = []
    defined = {}  # full name of a type → header
    texts = {library: [] for library in WITHOUT_CIRCLES}  # their sources, as (path, text)
    sources = 0
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in SOURCE_SUFFIXES or not file.is_file() or "corpus" in file.parts:
                continue
            path = file.relative_to(root).as_posix()
            text = file.read_text(encoding="utf-8")
            sources += 1
            if folder in texts:
                texts[folder].append((path, text))
            found = list(check_source(path, text))
            for name in types_of(text) if file.suffix == ".h" else ():
                # A linker takes either one's destructor, and says nothing.
                if (other := defined.setdefault(name, path)) != path:
                    found.append(
                        f"defines {name}, as {other} does: a program that has both is broken"
                    )
            complaints += [f"{path}: {what}" for what in found]
    for library in WITHOUT_CIRCLES:
        complaints += check_circles(library, texts[library])
    if sources < 50:
        complaints.append(
            f"{root}: only {sources} sources found; is this the root of the repository?"
        )
    return complaints


# What is planted, and words of the complaint that must follow.
PLANTED = [
    ("core/base/types.h", '\n#include "net/addresses.h"\n', "core may not use net"),
    ("core/base/types.h", '\n#include "models/job/job.h"\n', "core may not use models"),
    ("core/node/node.cpp", "\n#include <boost/asio/io_context.hpp>\n", "includes <boost/asio"),
    ("core/node/node.cpp", "\n#include <torch/torch.h>\n", "includes <torch/"),
    ("core/node/node.cpp", "\n#include <spdlog/spdlog.h>\n", "includes <spdlog/"),
    ("core/node/node.cpp", "\n#include <thread>\n", "includes <thread>"),
    ("core/node/node.cpp", "\n#include <sys/socket.h>\n", "includes <sys/socket.h>"),
    ("core/node/node.cpp", "\nauto t = std::chrono::steady_clock::now();\n", "asks a clock"),
    ("core/node/node.cpp", "\nauto r = std::random_device{}();\n", "draws randomness"),
    ("core/node/node.cpp", "\n  #  include <random>\n", "includes <random>"),
    ("net/addresses.cpp", '\n#include "daemon/config/config.h"\n', "net may not use daemon"),
    ("net/addresses.cpp", '\n#include "models/job/job.h"\n', "net may not use models"),
    ("models/job/job.cpp", '\n#include "net/addresses.h"\n', "models may not use net"),
    ("models/job/job.cpp", "\n#include <boost/asio.hpp>\n", "includes <boost/asio"),
    ("daemon/config/config.cpp", "\n#include <boost/beast/http.hpp>\n", "includes <boost/beast"),
    ("daemon/config/config.cpp", "\n#include <torch/torch.h>\n", "includes <torch/"),
    ("daemon/config/config.cpp", '\n#include "config.h"\n', "from the root"),
    ("tools/gossipctl/main.cpp", '\n#include "daemon/rest/rest.h"\n', "tools may not use daemon"),
    (
        "tools/gossipctl/main.cpp",
        '\n#include "daemon/config/config.h"\n',
        "tools may not use daemon",
    ),
    (
        "models/job/job.h",
        "\nnamespace gossipd {\nclass Node {\n};\n}\n",
        "defines gossipd::Node, as core/node.h",
    ),
    ("net/task_group.h", None, "does not begin with"),
    (
        "core/codec/codec.cpp",
        '\n#include "core/exchange/policy.h"\n',
        "a circle codec → exchange → codec",
    ),
    (
        "core/base/types.h",
        '\n#include "core/wire/reject.h"\n',
        "a circle base → wire → base",
    ),
    ("models/job/job.h", '\n#include "models/data/idx.h"\n', "a circle job → data → job"),
    ("daemon/config/config.h", '\n#include "daemon/rest/rest.h"\n', "a circle config → rest"),
]


def self_test(root):
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory)
        for folder in FOLDERS:
            shutil.copytree(
                root / folder, copy / folder, ignore=shutil.ignore_patterns("corpus", "__pycache__")
            )
        before = set(check_tree(copy))
        for path, planted, words in PLANTED:
            file = copy / path
            text = file.read_text(encoding="utf-8")
            file.write_text(
                text.partition("\n")[2] if planted is None else text + planted, encoding="utf-8"
            )
            new = set(check_tree(copy)) - before
            if not any(c.startswith(path + ": ") and words in c for c in new):
                failures.append(
                    f"self-test: {path} with {planted!r:.60} was not found (expected '{words}', got"
                    f" {sorted(new)})"
                )
            file.write_text(text, encoding="utf-8")
    if not any(line.startswith("wire → ") and " base" in line for line in graph(root)):
        failures.append("self-test: --graph does not show that core/wire includes core/base")
    return failures


def graph(root):
    """A line for each room of core: what it includes."""
    sources = [file for file in (root / "core").rglob("*") if file.suffix in SOURCE_SUFFIXES]
    texts = [(file.relative_to(root).as_posix(), file.read_text()) for file in sources]
    for source, targets in sorted(arrows_between_rooms("core", texts).items()):
        yield f"{source} → {' '.join(sorted(targets))}"


def print_graph(root):
    for line in graph(root):
        print(line)


def main(arguments):
    with_self_test = "--self-test" in arguments
    roots = [a for a in arguments if not a.startswith("--")]
    root = pathlib.Path(roots[0] if roots else pathlib.Path(__file__).parent.parent).resolve()
    if "--graph" in arguments:
        print_graph(root)
        return 0
    complaints = check_tree(root)
    if with_self_test:
        complaints += self_test(root)
    for complaint in complaints:
        print(complaint)
    if not complaints:
        print(
            "the layers hold"
            + (f"; {len(PLANTED)} planted violations were found" if with_self_test else "")
        )
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
