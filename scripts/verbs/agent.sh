#!/usr/bin/env bash
# Runs in the guest, in the host's root: makes the RDMA device, and then what the host puts into the shared directory.
#
#   agent.sh SHARED     job-NAME.sh appears there -> job-NAME.log, and job-NAME.rc when it has ended; `stop` ends the guest
set -u
cd "$1" || exit 1
# What guest.sh wrote there.
device='' address=''
# shellcheck source=/dev/null
. ./settings

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/run/tmp LANG=C.UTF-8
ulimit -l unlimited
ulimit -n 65536
ulimit -c 0

ip link set lo up
ip link set eth0 up
# Without a route, packets to nobody would fail at once instead of being lost.
ip addr add "$address/24" dev eth0
ip route add default via "${address%.*}.2"
rdma link add "${device}0" type "$device" netdev eth0 || echo "agent: no device of type $device" >&2

cut -d ' ' -f 1 /proc/uptime >up.new
mv up.new up

# One job, beside others.
run() {
    local name=$1 status=0
    bash "./$name.taken" >"$name.log" 2>&1 </dev/null || status=$?
    echo "$status" >"$name.rc.new"
    mv "$name.rc.new" "$name.rc"
}

while [[ ! -e stop ]]; do
    for job in job-*.sh; do
        [[ -e $job ]] || continue
        mv "$job" "${job%.sh}.taken"
        run "${job%.sh}" &
    done
    sleep 0.2
done
