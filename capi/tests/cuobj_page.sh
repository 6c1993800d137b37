#!/usr/bin/env bash
# Takes the five usage examples (section 1.12) from the text of cuObjClient's page, compiles them as they are behind our include and a
# `using namespace`, with what they leave to the reader around them (capi/tests/cuobj_page/main.cpp), and runs them.
#
#   cuobj_page.sh [CAPI [PAGE]]      CAPI: where the C interface was built (target/capi/debug)
set -euo pipefail
cd "$(dirname "$0")/../.."
capi=$(realpath "${1:-target/capi/debug}")
page=${2:-../shared/reference/cuobjclient-api.txt}
if [[ ! -e $page ]]; then
    echo "SKIPPED: the examples of cuObjClient's page: no $page here (capi/tests/cpp/cuobj.cpp is a program of ours of the same shape)"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Each example, byte by byte, in a file that is included where it belongs.
python3 - "$page" "$dir" <<'PY'
import pathlib
import re
import sys

page, folder = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2])
examples = re.findall(r"^1\.12\.(\d)\. [^\n]*#\n(.*?)(?=^1\.1\d\.)", page, re.M | re.S)
assert [number for number, _ in examples] == list("12345"), "the page has other examples"
for number, text in examples:
    assert "cuObjClient" in text or "cuMemObj" in text, text
    (folder / f"example_{number}.inc").write_text(text)
    print(f"example {number}: {len(text.splitlines())} lines, none of them changed")
PY

flags=(-std=c++20 -Wall -Wextra -Wno-unused-parameter -Werror -g1)
"${CXX:-c++}" "${flags[@]}" -I "$dir" -I "$capi/include" "$PWD/capi/tests/cuobj_page/main.cpp" -o "$dir/main" \
    -L "$capi/lib" -lfabricast -pthread -Wl,-rpath,"$capi/lib"
cd "$dir" # One of them writes a file.
run() { timeout -k 5 120 "$@" "$dir/main"; }
run env
[[ -z ${FABRICAST_LIBFABRIC_2:-} ]] || FABRICAST_LIBFABRIC=$FABRICAST_LIBFABRIC_2 run env
if command -v valgrind >/dev/null; then
    run valgrind -q --error-exitcode=9
else
    echo "SKIPPED: the examples of cuObjClient's page in valgrind: there is none here"
fi
