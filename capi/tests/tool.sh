#!/usr/bin/env bash
# Installs the command below a folder and unpacks its package beside it: both have the program, a manual page for each of its commands, and
# completions.
#
#   tool.sh FOLDER
set -euo pipefail
room=$1
cd "$(dirname "$0")/../.."

fail() {
    echo "$*"
    exit 1
}

# has ROOT PREFIX SUFFIX: of what is below ROOT, pages end with SUFFIX.
has() {
    local to=$1$2 suffix=$3 command
    [[ $("$to/bin/fabricast" --version) == "fabricast $(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)" ]] || fail "$to: it does not run"
    for command in '' $("$to/bin/fabricast" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\+\) .*/-\1/p' | grep -v -- -help); do
        [[ -s $to/share/man/man1/fabricast$command.1$suffix ]] || fail "$to: no page fabricast$command.1$suffix"
    done
    [[ -n ${command:-} ]] || fail "$to: --help lists no commands"
    bash -n "$to/share/bash-completion/completions/fabricast"
    [[ -s $to/share/fish/vendor_completions.d/fabricast.fish ]] || fail "$to: no completions for fish"
}

said=$(scripts/tool.sh install /opt/fabricast "$room/installed")
grep -q "^installed $room/installed/opt/fabricast/bin/fabricast$" <<<"$said" || fail "it does not say what it installed: $said"
has "$room/installed" /opt/fabricast ''
[[ -s $room/installed/opt/fabricast/share/zsh/site-functions/_fabricast ]] || fail "no completions for zsh"

if ! command -v dpkg-deb >/dev/null; then
    echo "SKIPPED: the package: no dpkg-deb here"
    exit
fi
deb=$(CAPI_COMPRESSION=none scripts/tool.sh deb "$room/deb")
dpkg-deb -x "$deb" "$room/unpacked"
has "$room/unpacked" /usr .gz
[[ -s $room/unpacked/usr/share/zsh/vendor-completions/_fabricast ]] || fail "no completions for zsh in the package"
dpkg-deb -f "$deb" Depends | grep -q 'libc6 (>= ' || fail "the package says not what it depends on"
(cd "$room/unpacked" && dpkg-deb --ctrl-tarfile "$deb" | tar xO ./md5sums | md5sum --quiet -c) || fail "its checksums are not those of its files"
