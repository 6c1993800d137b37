#!/usr/bin/env bash
# without-libfabric.sh COMMAND...: where there is no libfabric, neither to be loaded nor its headers. Who may (root) hides them from the command,
# in a namespace of its own; for others a path that leads nowhere stands for it.
set -euo pipefail
export FABRICAST_LIBFABRIC=/nonexistent/libfabric.so.1
# shellcheck disable=SC2016  # the inner shell's
hide='
set -e
for file in $(/sbin/ldconfig -p | sed -n "s/.*libfabric\.so.* => //p"); do mount --bind /dev/null "$file"; done
[[ ! -d /usr/include/rdma ]] || mount -t tmpfs none /usr/include/rdma
[[ ! -e /usr/include/rdma/fabric.h ]]
exec "$@"'
if unshare --mount bash -c "$hide" - true 2>/dev/null; then
    exec unshare --mount bash -c "$hide" - "$@"
fi
echo "libfabric is not hidden, only not named: no right to a namespace"
exec "$@"
