# shellcheck shell=bash
# An apt of its own for scripts that fetch Debian's packages: own sources, lists and cache. The system's apt state is not touched, and root is
# not needed. What it brings is signed by Debian's keys. Sourced by headers2.sh, libfabric-verbs.sh and verbs/kernel.sh.

apt_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# Says what is missing here for any of this, or nothing.
private_apt_lacks() {
    command -v apt-get >/dev/null || { echo "no apt-get here" && return; }
    command -v dpkg-deb >/dev/null || { echo "no dpkg-deb here" && return; }
    [[ -e $apt_keyring ]] || echo "$apt_keyring is missing (package debian-archive-keyring)"
}

# The mirror that this machine uses for its own Debian, else Debian's public name.
debian_mirror() {
    local id='' codename='' found=''
    # shellcheck source=/dev/null
    id=$(. /etc/os-release && echo "${ID:-}") codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    if [[ $id == debian && -n $codename ]]; then
        # shellcheck disable=SC2016  # apt expands these, not the shell
        found=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
            awk -v release="$codename" '($1 == release || $1 == "stable") && $2 == "main" { print $3; exit }')
    fi
    echo "${found:-http://deb.debian.org/debian}"
}

# private_apt DIRECTORY SUITE: writes an apt configuration for that suite below the directory, and has apt use it from here on.
# Proxies and the like are taken over from the system's settings; hooks that run after an update are not.
private_apt() {
    local at=$1 suite=$2 mirror
    mirror=$(debian_mirror)
    mkdir -p "$at"/{lists/partial,cache/archives/partial,state}
    : >"$at/state/status"
    echo "deb [signed-by=$apt_keyring] $mirror $suite main" >"$at/sources.list"
    apt-config dump | grep '^Acquire::' >"$at/apt.conf"
    cat >>"$at/apt.conf" <<CONFIG
Dir::Etc::Main "/dev/null";
Dir::Etc::Parts "/dev/null";
Dir::Etc::SourceList "$at/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$at/state";
Dir::State::Lists "$at/lists";
Dir::State::Status "$at/state/status";
Dir::Cache "$at/cache";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::Retries "2";
APT::Sandbox::User "";
CONFIG
    export APT_CONFIG=$at/apt.conf
}

# private_apt_get DIRECTORY PACKAGE...: downloads the packages' newest versions into the directory.
private_apt_get() {
    local into=$1
    shift
    timeout 300 apt-get update -q -o APT::Update::Error-Mode=any || return 1
    mkdir -p "$into"
    (cd "$into" && timeout 600 apt-get download -q "$@")
}
