#!/usr/bin/env python3
"""tests/style_test.py - the habits that a machine can check: layout, widths and lengths.

    tests/style_test.py [ROOT]       complains about every file that breaks a rule
    tests/style_test.py --self-test  also plants violations of each rule: each must be found

A line has at most 100 columns (but for URLs, Markdown tables, the fuzz corpus and the lab's
results), C++ is laid out by clang-format 14, a file has at most 500 lines, a function at most 60, a
class of core at most 25 data members, README.md at most 120 lines and 900 words, and nothing is
left unfinished. EXCEPTIONS names what is still too large; an entry that is no longer needed fails
the test, so the list can only shrink.
"""

import ast
import pathlib
import re
import subprocess
import sys
import tempfile

COLUMNS_MAX = 100
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
DATA_MEMBERS_MAX = 25
README_LINES_MAX = 120
README_WORDS_MAX = 900
FOLDERS = ("core", "net", "models", "daemon", "tools", "tests", "deploy")
CPP = {".cpp", ".h", ".inc"}
CODE = CPP | {".py", ".sh"}
TEXT = CODE | {".md", ".txt", ".cmake", ".toml"}
RAW_FOLDERS = ("tests/fuzz/corpus/", "tools/lab/evidence/results/")
CLANG_FORMAT = "clang-format-14"
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")

# What is too large today: a file as 'path', a function or class as 'path name'.
EXCEPTIONS = set()


def without(text, opening, closing):
    """`text` without what stands between these brackets, inner ones included."""
    kept, depth = [], 0
    for character in text:
        depth += character == opening
        if depth == 0:
            kept.append(character)
        depth -= character == closing and depth > 0
    return "".join(kept)


class CppReader:
    """Finds the functions and classes of one formatted C++ file, without a compiler."""

    LITERAL = re.compile(
        r"//[^\n]*|/\*.*?\*/"
        r'|\bR"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"'
        r'|"(?:[^"\\\n]|\\.)*"'
        r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'"
        r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        re.DOTALL | re.MULTILINE,
    )
    TYPE = re.compile(r"^(?:class|struct|union)\s+([\w:]+)")
    CALLED = re.compile(r"(operator\s*\(\)|operator[^(]+|[\w:~]+)\s*\(")
    NO_MEMBER = re.compile(
        r"\b(using|typedef|friend|static|operator)\b|^(enum|class|struct|union)\b"
    )

    def __init__(self, text):
        self.text = text
        # Same length, so that a place in one is a place in the other.
        self.code = self.LITERAL.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
        self.functions = []  # (name, first line, lines)
        self.classes = []  # (name, first line, data members)
        self.read(0)

    def line(self, at):
        return self.code.count("\n", 0, at) + 1

    def matching(self, at):
        """The place of the brace that closes the one at `at`."""
        depth = 0
        for place in range(at, len(self.code)):
            depth += (self.code[place] == "{") - (self.code[place] == "}")
            if depth == 0:
                return place
        return len(self.code)

    def read(self, at):
        """Reads declarations up to the closing brace: its place, and the data members seen."""
        members, parens, head, start = 0, 0, "", at
        while at < len(self.code):
            character = self.code[at]
            if character == "}":
                break
            parens += (character == "(") - (character == ")")
            if character == "{":
                # Formatted text has a space before a body and none before a value's braces.
                kind, name = ("value", "") if parens or self.code[at - 1] != " " else kind_of(head)
                first = start + len(self.code[start:]) - len(self.code[start:].lstrip())
                end = self.matching(at)
                if kind in ("scope", "class"):
                    end, inner = self.read(at + 1)
                    self.classes += [(name, self.line(first), inner)] * (kind == "class")
                elif kind == "function":
                    if name in ("TEST_CASE", "TEST_CASE_FIXTURE"):
                        words = "".join(re.findall(r'"([^"]*)"', self.text[first:at]))
                        name = f"TEST_CASE {words[:50]}"
                    self.functions.append(
                        (name, self.line(first), self.text.count("\n", first, end) + 1)
                    )
                at = end
                if kind in ("scope", "function"):
                    head, start = "", end + 1
                elif kind == "class":
                    head = "class "  # up to its semicolon
            elif character == ";" and not parens:
                members += data_members(head)
                head, start = "", at + 1
            elif character == ":" and head.strip() in ("public", "private", "protected"):
                head, start = "", at + 1
            else:
                head += character
            at += 1
        return at, members


def kind_of(head):
    """What a brace opens by the words before it, and its name."""
    plain = re.sub(r"operator\s*[<>=!]+", "operator_", head).strip()
    plain = re.sub(r"^template\s*", "", without(plain, "<", ">")).strip()
    if re.match(r"(inline\s+)?namespace\b|extern\s*$", plain):
        return "scope", ""
    if match := CppReader.TYPE.match(plain):
        if "(" not in plain:
            return "class", match.group(1)
    outside = without(plain, "(", ")")
    if plain.startswith("enum") or re.search(r"(?<!operator)=", outside):
        return "value", ""
    match = CppReader.CALLED.search(plain)
    return ("function", match.group(1)) if match else ("value", "")


def data_members(statement):
    """How many data members one statement of a class declares."""
    text = without(statement.strip(), "<", ">")
    declared = re.sub(r"\[\[.*?\]\]", "", text).partition("=")[0]
    if not declared or CppReader.NO_MEMBER.search(declared) or "(" in declared:
        return 0
    return 1 + without(text, "(", ")").count(",")


def functions_of(path, text):
    """(name, first line, lines) of every function."""
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, node.lineno, node.end_lineno - node.lineno + 1
    elif path.endswith(".sh"):
        for match in re.finditer(r"^(\w+)\(\) \{\n.*?^\}$", text, re.MULTILINE | re.DOTALL):
            first = text.count("\n", 0, match.start()) + 1
            yield match.group(1), first, match.group(0).count("\n") + 1


def too_wide(path, line):
    if len(line) <= COLUMNS_MAX or (path.endswith(".md") and line.lstrip().startswith("|")):
        return False
    return len(re.sub(r"\S*://\S*", "", line)) > COLUMNS_MAX or "://" not in line


def check_file(path, text):
    """(name for EXCEPTIONS or None, complaint) of one file."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if too_wide(path, line):
            yield None, f"{path}:{number}: has {len(line)} columns of at most {COLUMNS_MAX}"
        if match := UNFINISHED.search(line):
            yield None, f"{path}:{number}: '{match.group(0)}': finish it, or open an issue"
    words = len(text.split())
    if path == "README.md" and (len(lines) > README_LINES_MAX + 1 or words > README_WORDS_MAX):
        yield None, (
            f"{path}: has {len(lines) - 1} lines and {words} words"
            f" of at most {README_LINES_MAX} and {README_WORDS_MAX}"
        )
    suffix = pathlib.PurePath(path).suffix
    if suffix not in CODE:
        return
    if len(lines) - 1 > FILE_LINES_MAX:
        yield path, (
            f"{path}: has {len(lines) - 1} lines of at most {FILE_LINES_MAX}; split it by purpose"
        )
    reader = CppReader(text) if suffix in CPP else None
    for name, line, length in reader.functions if reader else functions_of(path, text):
        if length > FUNCTION_LINES_MAX:
            yield f"{path} {name}", (
                f"{path}:{line}: {name} has {length} lines of at most {FUNCTION_LINES_MAX}"
            )
    if reader and path.startswith("core/"):
        for name, line, members in reader.classes:
            if members > DATA_MEMBERS_MAX:
                yield f"{path} {name}", (
                    f"{path}:{line}: {name} has {members} data members"
                    f" of at most {DATA_MEMBERS_MAX}"
                )
        if "NodeImpl::" in text:
            yield f"{path} NodeImpl::", f"{path}: NodeImpl:: is one class spread over files"


def check_layout(root, paths):
    """Complaints of clang-format, one a file."""
    try:
        run = subprocess.run(
            [CLANG_FORMAT, "--dry-run", "-Werror", *paths], cwd=root, capture_output=True, text=True
        )
    except FileNotFoundError:
        return [f"{CLANG_FORMAT} is missing; deploy/install-packages.sh --tests installs it"]
    places = re.findall(r"^(\S+?):(\d+):\d+: error", run.stderr, re.MULTILINE)
    first = {path: line for path, line in reversed(places)}
    if run.returncode and not first:
        return [f"{CLANG_FORMAT}: {run.stderr.strip()}"]
    return [
        f"{path}:{line}: is not laid out as {CLANG_FORMAT} -i {path} would"
        for path, line in sorted(first.items())
    ]


def files_of(root):
    files = [file for file in root.glob("*") if file.is_file()]
    files += [file for folder in FOLDERS for file in (root / folder).rglob("*") if file.is_file()]
    for file in sorted(files):
        path = file.relative_to(root).as_posix()
        if file.suffix in TEXT and not path.startswith(RAW_FOLDERS):
            yield path, file.read_text(encoding="utf-8")


def check_tree(root, exceptions):
    """All complaints about the files under `root`."""
    complaints, used, cpp = [], set(), []
    for path, text in files_of(root):
        if path.endswith(tuple(CPP)):
            cpp.append(path)
        for name, complaint in check_file(path, text):
            if name in exceptions:
                used.add(name)
            else:
                complaints.append(complaint)
    complaints += check_layout(root, cpp) if cpp else []
    complaints += [
        f"'{name}' is not too large any more: take it off EXCEPTIONS"
        for name in sorted(exceptions - used)
    ]
    return complaints


# ---- self-test: each file is planted alone, and its complaint must hold these words ----

BODY = "  int a = 0;\n" * (FUNCTION_LINES_MAX - 1)
# Exactly as long and as wide as allowed, and hard to read: nothing may be found in it.
CLEAN = (
    'namespace gossipd {\nconst char* text = R"({{{)";\nconst char brace = \'{\';\n'
    "const int big = 1'000'000;\n#define OPEN {\n// {\n"
    "struct Pair {\n  int a{1}, b = 2;\n};\n\n"
    "Thing::Thing(int a) : a_{a}, b_(1) {}\n\n"
    "bool operator<(const Pair& a, const Pair& b) {\n" + BODY[:-13] + "}\n\n"
    "auto lambda = [] { return 1; };\n}  // namespace gossipd\n"
)
WIDE = "x" * COLUMNS_MAX
MEMBERS = "".join(f"  std::function<void(int)> m{i}_{{}};\n" for i in range(DATA_MEMBERS_MAX - 1))
CLASS_HEAD = (
    "class A : public B {\n public:\n  A();\n  int f() const { return 1; }\n  static int s;\n"
)
PLANTED = [
    ("net/a.cpp", f"// {WIDE}\n", "has 103 columns"),
    ("tools/a.md", f"{WIDE} |\n", "has 102 columns"),
    ("a.txt", f"{WIDE} https://example.org\n", "columns"),
    ("README.md", "a\n" * (README_LINES_MAX + 1), "has 121 lines"),
    ("README.md", "a " * (README_WORDS_MAX + 1), "and 901 words"),
    ("net/a.cpp", "int  a;\n", "is not laid out"),
    ("net/a.cpp", "int a;\n" * (FILE_LINES_MAX + 1), "has 501 lines"),
    ("tests/a.py", "a = 1\n" * (FILE_LINES_MAX + 1), "has 501 lines"),
    ("net/a.cpp", "int f(int a) {\n" + BODY + "}\n", "f has 61 lines"),
    ("net/a.cpp", "A::A(int a) : a_{a}, b_(1) {\n" + BODY + "}\n", "A::A has 61 lines"),
    ("net/a.cpp", 'TEST_CASE("a { b") {\n' + BODY + "}\n", "TEST_CASE a { b has 61 lines"),
    ("net/a.cpp", "class A {\n  int f() {\n" + BODY + "  }\n};\n", "f has 61 lines"),
    (
        "net/a.cpp",
        "template <class T>\nbool operator<(T a, T b) {\n" + BODY + "}\n",
        "has 62 lines",
    ),
    ("tests/a.py", "def f():\n" + "    a = 1\n" * FUNCTION_LINES_MAX, "f has 61 lines"),
    ("deploy/a.sh", "f() {\n" + "  :\n" * (FUNCTION_LINES_MAX - 1) + "}\n", "f has 61 lines"),
    ("core/a.h", CLASS_HEAD + MEMBERS + "  int a_ = f(1), b_;\n};\n", "A has 26 data members"),
    ("core/a.cpp", "void NodeImpl::f() {}\n", "NodeImpl::"),
    ("net/a.h", "// TO" "DO: later\n", "finish it"),
]


def complaints_about(root, path, text, exceptions=frozenset()):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    found = check_tree(root, exceptions)
    file.unlink()
    return found


def self_test(layout):
    """What was planted and not found. `layout` is the text of our .clang-format."""
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / ".clang-format").write_text(layout, encoding="utf-8")
        for path, planted, words in PLANTED:
            found = complaints_about(root, path, planted)
            if not any(words in complaint for complaint in found):
                failures.append(f"self-test: '{words}' was not found in {path}, but {found}")
        wide_enough = f"{WIDE}\n[{WIDE}](https://example.org)\n| {WIDE} |\n".replace(
            f"[{WIDE}]", "[a]"
        )
        for path, text in [("core/a.cpp", CLEAN), ("a.md", wide_enough)]:
            if found := [c for c in complaints_about(root, path, text) if "laid out" not in c]:
                failures.append(f"self-test: nothing is wrong with {path}, but {found}")
        if not any("EXCEPTIONS" in c for c in complaints_about(root, "a.md", "a\n", {"a.md"})):
            failures.append("self-test: a stale exception was not found")
    return failures


def main(arguments):
    roots = [a for a in arguments if not a.startswith("--")]
    root = pathlib.Path(roots[0] if roots else pathlib.Path(__file__).parent.parent).resolve()
    complaints = check_tree(root, EXCEPTIONS)
    if "--self-test" in arguments:
        complaints += self_test((root / ".clang-format").read_text(encoding="utf-8"))
    for complaint in complaints:
        print(complaint)
    if not complaints:
        print(f"the style holds, with {len(EXCEPTIONS)} exceptions")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
