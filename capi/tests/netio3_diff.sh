#!/usr/bin/env bash
# Compiles a program for netio3 against declarations of netio3's, and the same program for fabricast,
# runs the latter, and prints in how many lines they differ; docs/migrating-from-netio3.md shows both.
#
#   netio3_diff.sh [CAPI]      where the C interface was built (target/capi/debug)
set -euo pipefail
cd "$(dirname "$0")/../.."
capi=$(realpath "${1:-target/capi/debug}")
stubs=capi/tests/netio3_stubs
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

flags=(-std=c++20 -Wall -Wextra -Werror -g)
"${CXX:-c++}" "${flags[@]}" -fsyntax-only -I "$stubs" "$stubs/before.cpp"
"${CXX:-c++}" "${flags[@]}" -I "$capi/include" "$stubs/after.cpp" -o "$dir/after" \
    -L "$capi/lib" -lfabricast -pthread -Wl,-rpath,"$capi/lib"
timeout 120 "$dir/after"

diff -u "$stubs/before.cpp" "$stubs/after.cpp" >"$dir/diff" || true
old=$(grep -c '^-[^-]' "$dir/diff")
new=$(grep -c '^+[^+]' "$dir/diff")
sed -n '/^[-+][^-+]/p' "$dir/diff"
echo "netio3_diff: of $(wc -l <"$stubs/before.cpp") lines $old go and $new come"
[[ $old -le 4 && $new -le 4 ]]

# What the page shows is what was compiled.
python3 - "$stubs" <<'PY'
import sys
page = open("docs/migrating-from-netio3.md").read()
program = open(sys.argv[1] + "/before.cpp").read()
assert "```cpp\n" + program + "```" in page, "docs/migrating-from-netio3.md shows another program"
PY
