#!/usr/bin/env python3
"""Holds the binary interface of libfabricast to what capi/abi.tsv says of it.

   capi-abi.py [FOLDER]                       compares; FOLDER is what `capi.sh build` made, target/capi/debug by default
   capi-abi.py --write [FOLDER]               writes what was added; refuses what breaks programs, unless the minor version
                                              of Cargo.toml is another one than that of capi/abi.tsv
   capi-abi.py --write --unreleased [FOLDER]  also that: while no program was linked with this version
   capi-abi.py --fuzzed FUZZER LIBRARY        names the functions that the fuzzer does not call
   capi-abi.py --classes                      names the functions that no class of the C++ headers calls; fails where there is one that
                                              WITHOUT_CLASS has no reason for

Within a minor version functions, constants and types may be added, a struct whose first field is `size_t size` may get fields behind its
last one, and what is called `reserved` may become fields. Nothing else may change: the soname would lie.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "capi/abi.tsv"
HEAD = "# kind\tname\tsince\twhat it is: written by scripts/capi-abi.py --write, which has the rules"
# Says which version the header is of, so it changes with every one.
OF_THE_VERSION = {"FCAST_VERSION"}
# What the C++ headers need not call, by its name or by how it begins, and why. A row that no function needs is a mistake, too.
WITHOUT_CLASS = {}


def version():
    text = (ROOT / "Cargo.toml").read_text()
    package = re.search(r"^\[workspace\.package\]$(.*?)^\[", text, re.M | re.S).group(1)
    return re.search(r'^version = "(.*)"', package, re.M).group(1)


def minor(of):
    return tuple(of.split(".")[:2])


def one_line(text):
    return re.sub(r"\s+", " ", text).strip()


class Header:
    """What the C headers declare."""

    def __init__(self, folder):
        self.files = sorted(folder.glob("*.h"))
        self.constants, self.structs, self.functions, self.types = {}, {}, {}, {}
        for file in self.files:
            self.read(re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text(), flags=re.S))

    def read(self, text):
        for name, value in re.findall(r"^#define (FCAST_\w+) (.+)$", text, re.M):
            self.constants[name] = one_line(value)
        text = re.sub(r"^#.*$", "", text, flags=re.M).replace('extern "C" {', "")
        for body, name in re.findall(r"typedef (?:struct|union)(?: \w+)? \{(.*?)\} (\w+);", text, re.S):
            self.structs[name] = [self.field(field) for field in body.split(";") if field.strip()]
        for name, body in re.findall(r"enum (\w+) \{(.*?)\}", text, re.S):
            raise SystemExit(f"capi-abi.py: enum {name}: the size of an enum is the compiler's choice, use a number")
        text = re.sub(r"typedef (?:struct|union)(?: \w+)? \{.*?\} \w+;", "", text, flags=re.S)
        for statement in map(one_line, text.split(";")):
            if statement.startswith("typedef "):
                name = re.search(r"\(\*(\w+)\)", statement) or re.search(r"(\w+)$", statement)
                self.types[name.group(1)] = statement
            elif found := re.match(r"([\w ]+[ *]+)(fcast_\w+)\((.*)\)$", statement):
                result, name, arguments = found.groups()
                self.functions[name] = f"{one_line(result)}({self.unnamed(arguments)})"

    @staticmethod
    def field(text):
        text = one_line(text)
        name = re.search(r"\(\*(\w+)\)", text) or re.search(r"(\w+)(\[\w+\])*$", text)
        return name.group(1), text[: name.start(1)].strip() + text[name.end(1) :]

    @staticmethod
    def unnamed(arguments):
        """Types alone: another name of an argument is no other interface."""
        types = [re.sub(r"(\W)\w+((\[\w*\])*)$", r"\1\2", argument.strip()) for argument in arguments.split(",")]
        return ", ".join(one_line(kind) for kind in types)


def layouts(header, folder):
    """Sizes and offsets, as the C compiler has them."""
    lines = [f"#include <{file.name}>" for file in header.files] + ["#include <stdio.h>", "int main(void) {"]
    for struct, fields in header.structs.items():
        lines.append(f'printf("struct\\t{struct}\\t%zu\\t%zu\\n", sizeof({struct}), _Alignof({struct}));')
        for name, _ in fields:
            place = f"offsetof({struct}, {name}), sizeof((({struct} *)0)->{name})"
            lines.append(f'printf("field\\t{struct}.{name}\\t%zu\\t%zu\\n", {place});')
    for name in header.constants:
        lines.append(f'printf("constant\\t{name}\\t%lld\\t%zu\\n", (long long){name}, sizeof({name}));')
    lines.append("return 0; }")
    with tempfile.TemporaryDirectory() as room:
        source, program = pathlib.Path(room, "layout.c"), pathlib.Path(room, "layout")
        source.write_text("\n".join(lines))
        subprocess.run(["cc", "-std=c11", f"-I{folder}", "-o", program, source], check=True)
        said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {(kind, name): (int(a), int(b)) for kind, name, a, b in (line.split("\t") for line in said.splitlines())}


def exported(library):
    """Names and symbol versions of what a library exports; anything else than functions of ours is a mistake."""
    said = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    symbols = {}
    for kind, name in (line.split()[1:] for line in said.splitlines()):
        name, _, of = name.partition("@")
        if kind != "A":
            symbols[name] = of.lstrip("@")
    return symbols


def built(folder):
    """The rows of what was built, by kind and name."""
    header, symbols = Header(folder / "include"), exported(folder / "lib/libfabricast.so")
    rows = {}
    for name in symbols.keys() | header.functions.keys():
        declared, of = header.functions.get(name), symbols.get(name)
        if declared is None or of is None:
            missing = "declared and not exported" if of is None else "exported and not declared"
            raise SystemExit(f"capi-abi.py: {name} is {missing}")
        rows["function", name] = f"{of} {declared}"
    for (kind, name), (first, second) in layouts(header, folder / "include").items():
        if name not in OF_THE_VERSION:
            words = {"struct": "size {} align {}", "field": "offset {} size {}", "constant": "{} ({} bytes)"}
            rows[kind, name] = words[kind].format(first, second)
    for struct, fields in header.structs.items():
        for name, kind in fields:
            rows["field", f"{struct}.{name}"] += f" {kind}"
    for name, statement in header.types.items():
        rows["type", name] = statement
    return rows


def kept():
    """The rows of capi/abi.tsv, and since when they are."""
    rows, since = {}, {}
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        if not line.startswith("#"):
            kind, name, version_of, what = line.split("\t")
            rows[kind, name], since[kind, name] = what, version_of
    return rows, since


def numbers(what):
    return [int(number) for number in re.findall(r"(?:offset|size) (\d+)", what)]


def may_change(old, new, key):
    """Whether a row may be another one, or gone, without a program noticing."""
    kind, name = key
    if kind == "struct":
        first = new.get(("field", f"{name}.size"), "")
        grew = key in new and numbers(new[key])[0] > numbers(old[key])[0]
        return grew and first.startswith("offset 0 ") and first.endswith(" size_t")
    if kind == "field" and name.rpartition(".")[2].startswith("reserved"):
        return ("struct", name.rpartition(".")[0]) in new
    return False


def misplaced(old, new, key):
    """A new field in bytes that were an old one's: only those that were reserved may be taken."""
    struct = key[1].rpartition(".")[0]
    if key[0] != "field" or ("struct", struct) not in old:
        return False
    offset, size = numbers(new[key])
    if offset >= numbers(old["struct", struct])[0]:
        return False
    for other, what in old.items():
        if other[0] == "field" and other[1].startswith(struct + ".reserved"):
            begin, length = numbers(what)
            if begin <= offset and offset + size <= begin + length:
                return False
    return True


def differences(old, new):
    """What breaks programs, and what was only added."""
    breaks, added = [], []
    for key, what in sorted(old.items()):
        if new.get(key) != what:
            line = f"{' '.join(key)}: {what} -> {new.get(key, 'gone')}"
            (added if may_change(old, new, key) else breaks).append(line)
    for key in sorted(new.keys() - old.keys()):
        line = f"{' '.join(key)}: {new[key]}"
        (breaks if misplaced(old, new, key) else added).append(line)
    return breaks, added


def compare(old, since, new):
    breaks, added = differences(old, new)
    same = all(minor(of) == minor(version()) for of in since.values())
    for line in breaks:
        print(f"breaks programs: {line}")
    for line in added:
        print(f"added: {line}")
    if breaks and same:
        print(f"FAILED: version {version()} has the soname of programs that this breaks. Undo it, or give the workspace a new minor version")
        print("(version and FCAST_VERSION, capi/fabricast.map) and write the list anew: scripts/capi-abi.py --write")
    elif breaks or added:
        print("FAILED: capi/abi.tsv is not of these sources: write it anew (scripts/capi-abi.py --write) and commit it")
    else:
        functions = sum(kind == "function" for kind, _ in new)
        print(f"{functions} functions and {len(new) - functions} other rows are as capi/abi.tsv says")
    return not (breaks or added)


def write(old, since, new, unreleased):
    breaks, _ = differences(old, new)
    same = all(minor(of) == minor(version()) for of in since.values())
    if breaks and same and not unreleased:
        print("\n".join(breaks))
        raise SystemExit("capi-abi.py: this breaks programs that are linked with this minor version (see above): not written")
    fresh = not same
    lines = [HEAD] + [
        "\t".join((*key, version() if fresh else since.get(key, version()), what)) for key, what in sorted(new.items())
    ]
    KEPT.write_text("\n".join(lines) + "\n")
    print(f"wrote {len(new)} rows to capi/abi.tsv")


def fuzzed(fuzzer, library):
    said = subprocess.run([fuzzer, "--list"], check=True, capture_output=True, text=True).stdout
    missing = sorted(exported(library).keys() - set(said.split()))
    if missing:
        print(f"note: {len(missing)} functions that no fuzzer calls (capi/tests/fuzz): {' '.join(missing)}")


def called_in_cxx(folder):
    """The functions that C++ headers name outside of comments. Those for netio3's programs do not count: they are no way to a function."""
    named = set()
    for file in folder.glob("*.hpp"):
        if not file.name.startswith("fabricast_netio"):
            code = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text(), flags=re.S)
            named.update(re.findall(r"\bfcast_\w+", code))
    return named


def excuses(row, name):
    """Whether a row of WITHOUT_CLASS is about a function: its name, how it begins where it ends with _, or `*` for a part of it."""
    return re.fullmatch(re.escape(row).replace(r"\*", r"\w+") + (r"\w+" if row.endswith("_") else ""), name)


def classes():
    folder = ROOT / "capi/include"
    functions = Header(folder).functions.keys()
    missing = functions - called_in_cxx(folder)
    bare = sorted(name for name in missing if not any(excuses(row, name) for row in WITHOUT_CLASS))
    idle = sorted(row for row in WITHOUT_CLASS if not any(excuses(row, name) for name in missing))
    for name in bare:
        print(f"no class calls {name}: give one of capi/include/*.hpp a way to it, or WITHOUT_CLASS of this script a reason")
    for row in idle:
        print(f"WITHOUT_CLASS has {row}, which no function needs any more: take it out")
    if not bare and not idle:
        print(f"the C++ headers call {len(functions) - len(missing)} of {len(functions)} functions; the others have a reason")
    return 1 if bare or idle else None


def main(arguments):
    if arguments[:1] == ["--fuzzed"]:
        return fuzzed(*arguments[1:])
    if arguments == ["--classes"]:
        return classes()
    flags = {argument for argument in arguments if argument.startswith("--")}
    folders = [argument for argument in arguments if argument not in flags]
    if flags - {"--write", "--unreleased"} or len(folders) > 1:
        raise SystemExit(__doc__)
    new = built(pathlib.Path(folders[0] if folders else ROOT / "target/capi/debug"))
    old, since = kept()
    if "--write" in flags:
        return write(old, since, new, "--unreleased" in flags)
    return None if compare(old, since, new) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
