#!/usr/bin/env python3
"""Counts what the shape of the sources is judged by. Code lines have no comments, blanks or tests in them.

   count.py           the sums, a line each
   count.py --list    and what each sum is made of
   count.py --check   names each line of Rust and of the documents that is too wide; 1 where there is one
"""
import collections
import pathlib
import re
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOPS = ("src", "tests", "examples", "benches", "crates", "capi", "fuzz", "docs")
LINK_TARGET = re.compile(r"(?<=\])\([^)\s]*\)|https?://\S+")
FIELDS, FILE_LINES, FUNCTION_LINES, COLUMNS = 20, 600, 60, 100
TEST_ATTRIBUTE = re.compile(r"#\[cfg\((?:all\()?\s*(?:test|loom|any\(test)\b[^\]]*\]")
TOKENS = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)'
    r'|(?P<text>b?r(?P<marks>#*)".*?"(?P=marks)|[bc]?"(?:\\.|[^"\\])*")'
    r"|(?P<char>b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])')",
    re.S,
)


def blank(found):
    """The same number of lines, without a word that could be taken for code."""
    lines = found.group().count("\n") * "\n"
    return lines if found.group("comment") else '""' + lines


def end_of_item(code, at):
    """Where the item that begins at `at` is over: behind its closing brace, or behind its semicolon."""
    depth = 0
    while at < len(code):
        if code[at] in "{([":
            depth += 1
        elif code[at] in "})]":
            depth -= 1
            # A field, or what else stands last in braces that are not its own.
            if depth < 0:
                return at
            if depth == 0 and code[at] == "}":
                return at + 1
        elif code[at] == ";" and depth == 0:
            return at + 1
        at += 1
    return at


class Source:
    def __init__(self, path):
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.text = path.read_text()
        self.code = TOKENS.sub(blank, self.text)
        self.test_files = set()
        self.is_test = False

    def leave_out_tests(self):
        code, kept, at = self.code, [], 0
        for found in TEST_ATTRIBUTE.finditer(code):
            if found.start() < at:
                continue
            begin = found.end()
            # Further attributes of the same item.
            while more := re.compile(r"\s*#\[[^\]]*\]").match(code, begin):
                begin = more.end()
            end = end_of_item(code, begin)
            item = code[begin:end]
            if module := re.match(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", item):
                self.test_files.add(module.group(1))
            kept.append(code[at : found.start()])
            kept.append("\n" * code[found.start() : end].count("\n"))
            at = end
        self.code = "".join(kept) + code[at:]

    def below(self, module):
        """The files of a module that this file declares."""
        home = self.path.parent
        if self.path.name not in ("mod.rs", "lib.rs", "main.rs"):
            home = home / self.path.stem
        return [home / f"{module}.rs", home / module]

    def code_lines(self):
        return sum(1 for line in self.code.split("\n") if line.strip())


def read(*tops):
    sources = [Source(path) for top in tops for path in sorted((ROOT / top).rglob("*.rs"))]
    for source in sources:
        source.leave_out_tests()
    tests = [path for source in sources for module in source.test_files for path in source.below(module)]
    for source in sources:
        named = re.search(r"(^|/|_)(tests|testing)(\.rs$|/)", source.name)
        declared = any(source.path == path or path in source.path.parents for path in tests)
        source.is_test = bool(named) or declared
    return [source for source in sources if not source.is_test], sources


def items(pattern, source):
    for found in re.finditer(pattern, source.code):
        end = end_of_item(source.code, found.end())
        yield found, source.code[found.start() : end]


def field_count(body):
    inside = body[body.index("{") + 1 : body.rindex("}")]
    depth, flat = 0, []
    for letter in inside.replace("->", ""):
        depth -= letter in "})]>"
        if depth == 0:
            flat.append(letter)
        depth += letter in "{([<"
    return len(re.findall(r"\w\s*:(?!:)", "".join(flat).replace("::", "")))


def structs(product):
    for source in product:
        for found, body in items(r"\bstruct\s+(\w+)", source):
            if "{" in body:
                yield field_count(body), f"{found.group(1)}  {source.name}"


def functions(product):
    for source in product:
        for found, body in items(r"\bfn\s+(\w+)", source):
            if body.endswith("}"):
                yield body.count("\n") + 1, f"{found.group(1)}  {source.name}"


def top_of(source):
    """The top module that a file of src/ belongs to, or its crate below crates/."""
    top, *parts = source.path.relative_to(ROOT).parts
    return f"crates/{parts[0]}" if top == "crates" else parts[0].removesuffix(".rs")


def in_src(source):
    return source.name.startswith("src/")


def repeated_names(product):
    """Type names that are defined more than once below one top module."""
    where = collections.defaultdict(list)
    for source in product:
        for found in re.finditer(r"\b(?:struct|enum|union|trait)\s+([A-Z]\w*)", source.code):
            where[top_of(source), found.group(1)].append(source.name)
    return [f"{name}  {' '.join(at)}" for (_, name), at in sorted(where.items()) if len(at) > 1]


def used_tops(source, exported):
    for found in re.finditer(r"\bcrate::(\w+|\{)", source.code):
        names = [found.group(1)]
        if names == ["{"]:
            group = source.code[found.end() - 1 : end_of_item(source.code, found.end() - 1)]
            names = re.findall(r"(?:[{,]\s*)(\w+)", re.sub(r"::\{[^}]*\}", "", group))
        for name in names:
            yield exported.get(name, name)


def circles(product):
    """Top modules that need each other, directly or by way of others. Of crates, cargo sees to it."""
    product = [source for source in product if in_src(source)]
    tops = {top_of(source) for source in product} - {"lib"}
    exported = {}
    library = next(source for source in product if source.name == "src/lib.rs")
    for found in re.finditer(r"\bpub use (\w+)::([^;]+);", library.code):
        for name in re.findall(r"\w+", found.group(2)):
            exported[name] = found.group(1)
    needs = collections.defaultdict(set)
    for source in product:
        if top_of(source) in tops:
            needs[top_of(source)] |= (set(used_tops(source, exported)) & tops) - {top_of(source)}
    reach = {top: set(needs[top]) for top in tops}
    for _ in tops:
        for top in tops:
            reach[top] |= set().union(*(reach[other] for other in reach[top])) if reach[top] else set()
    knots = {frozenset(b for b in tops if b in reach[a] and a in reach[b]) for a in tops}
    return [" ".join(sorted(knot)) for knot in sorted(knots, key=sorted) if len(knot) > 1]


def files(suffix):
    """Of this repository; what lies beside them in the working tree is not its own."""
    yield from sorted(ROOT.glob(f"*{suffix}"))
    for top in TOPS:
        for path in sorted((ROOT / top).rglob(f"*{suffix}")):
            if "target" not in path.relative_to(ROOT).parts:
                yield path


def wide(path, lines):
    for at, line in lines:
        if len(line) > COLUMNS:
            yield f"{path.relative_to(ROOT)}:{at}: {len(line)} columns"


def wide_lines():
    for path in files(".rs"):
        yield from wide(path, enumerate(path.read_text().split("\n"), 1))


def prose(text):
    """Lines of a document with their numbers: without tables, code, what is generated, and the targets of links."""
    code = generated = False
    for at, line in enumerate(text.split("\n"), 1):
        begins = line.lstrip()
        if begins.startswith("```"):
            code = not code
        elif begins.startswith("<!--"):
            generated = begins.startswith("<!-- From ")
        elif not (code or generated or begins.startswith("|")):
            yield at, LINK_TARGET.sub("", line)


def wide_prose():
    for path in files(".md"):
        yield from wide(path, prose(path.read_text()))


def setters(product):
    owner = re.compile(r"\bimpl(?:<[^>]*>)?\s+(\w*(?:Config|Options|Settings|Builder))\b[^{;]*")
    for source in product:
        for found, body in items(owner, source):
            for setter in re.findall(r"\bpub fn (\w+)\s*(?:<[^>]*>)?\(\s*(?:mut )?self\b[^{]*->\s*Self\b", body):
                yield f"{found.group(1)}::{setter}"


def public_types(product):
    for source in product:
        for found in re.finditer(r"\bpub (?:struct|enum|union|trait|type) (\w+)", source.code):
            yield f"{found.group(1)}  {source.name}"


def check():
    found = [*wide_lines(), *wide_prose()]
    for place in found:
        print(place)
    if found:
        sys.exit(f"{len(found)} lines are wider than {COLUMNS} columns")


def main():
    # Who reads only the first lines (`head`) ends this quietly.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if "--check" in sys.argv[1:]:
        return check()
    # The crate of the C ABI is what C makes of it.
    crates = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "crates").glob("fabricast-*"))]
    product, everything = read("src", *crates)
    # The protocol of endpoints is a module of its own, below errors.
    endpoint = [source for source in product if top_of(source) in ("endpoint", "protocol")]
    rows = [
        ("code lines of src/endpoint and src/protocol", sum(source.code_lines() for source in endpoint), []),
        ("code lines of src", sum(source.code_lines() for source in product if in_src(source)), []),
        ("code lines of crates/fabricast-*", sum(s.code_lines() for s in product if not in_src(s)), []),
        ("lines of tests in src", sum(s.text.count("\n") for s in everything if s.is_test and in_src(s)), []),
    ]

    def row(what, found):
        found = list(found)
        rows.append((what, len(found), found))

    def beyond(limit, found):
        return [f"{size:5} {what}" for size, what in sorted(found, reverse=True) if size > limit]

    row(f"structs of more than {FIELDS} fields", beyond(FIELDS, structs(product)))
    row(f"files of more than {FILE_LINES} lines, tests in them not counted", beyond(FILE_LINES, lines_without_tests(product)))
    row(f"functions of more than {FUNCTION_LINES} lines", beyond(FUNCTION_LINES, functions(product)))
    row("type names used twice below one top module", repeated_names(product))
    row("circles of imports between top modules", circles(product))
    row(f"lines of Rust wider than {COLUMNS} columns", wide_lines())
    row(f"lines of documents wider than {COLUMNS} columns, tables and code not counted", wide_prose())
    row("setters on settings types", setters(product))
    row("public types", public_types(product))
    for what, count, made_of in rows:
        print(f"{count:7}  {what}")
        if "--list" in sys.argv[1:]:
            for line in made_of[:400]:
                print(f"           {line}")


def lines_without_tests(product):
    """Comments count: they are read, too."""
    for source in product:
        kept = sum(1 for line in source.text.split("\n"))
        tests = re.search(r"^#\[cfg\((?:all\()?\s*(?:test|any\(test)[^\n]*\]\n(?:#\[[^\n]*\n)*mod \w+ \{", source.text, re.M)
        if tests:
            kept = source.text[: tests.start()].count("\n")
        yield kept, source.name


if __name__ == "__main__":
    main()
