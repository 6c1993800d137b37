# shellcheck shell=bash
# Guests: QEMU machines with a soft RDMA device, the host's root read-only under a tmpfs, and a directory that host and guest share.
# Sourced by verbs.sh; needs `kernel` (the directory of kernel.sh), `repository` and `logs`.
#
#   guest_image                      makes the initramfs; once, before all else
#   guest_start NAME LAYER NET...    starts a guest and waits until it is up; NET: how QEMU's netdev `n` reaches others
#   guest_job NAME JOB SECONDS CMD   puts a job into it, and returns at once; what it prints: $(guest_dir NAME)/job-JOB.log
#   guest_wait NAME JOB SECONDS      waits for a job's end, and has its exit status; 124: not in time, 125: the guest is gone
#   guest_monitor NAME COMMAND       a command for QEMU, such as `set_link n off`
#   guest_kill NAME                  as if its plug was pulled
#   guest_stop NAME                  ends it in good order, or else kills it
#   guest_stop_all                   for the trap
#
# VERBS_CPUS, VERBS_MEMORY, VERBS_DEVICE (rxe, siw), VERBS_ACCEL (tcg, kvm); VERBS_QEMU: another qemu-system-x86_64; VERBS_ROOT: a root for the
# guests other than the host's, with the programs to run in its usr/local/bin, for machines that have no RDMA libraries of their own.
# shellcheck disable=SC2154  # verbs.sh sets what is not set here

declare -A guest_pid=() guest_console=()
guest_cpus=${VERBS_CPUS:-2}
guest_memory=${VERBS_MEMORY:-4G}
guest_device=${VERBS_DEVICE:-rxe}
guest_qemu=${VERBS_QEMU:-qemu-system-x86_64}
guest_root=${VERBS_ROOT:-/}
# Seconds until a guest must be up: some 10 on an idle machine, and more where four cores' work is done by one.
guest_boot_limit=180

guest_dir() { echo "$logs/guest-$1"; }

# Two guests are .15 and .16 of one network.
guest_address() {
    case $1 in
    *b) echo 10.0.2.16 ;;
    *) echo 10.0.2.15 ;;
    esac
}

guest_alive() { [[ -n ${guest_pid[$1]:-} ]] && kill -0 "${guest_pid[$1]}" 2>/dev/null; }

guest_has_module() { [[ -n $(find "$kernel/lib/modules" -name "$1.ko" -print -quit) ]]; }

guest_image() {
    local room=$logs/initramfs
    mkdir -p "$room"/{bin,proc,sys,dev,share,lower,upper,root,lib}
    cp "$kernel/busybox" "$room/bin/busybox"
    cp -r "$kernel/lib/modules" "$room/lib/modules"
    cp "$repository/scripts/verbs/init" "$room/init"
    chmod 755 "$room/init"
    (cd "$room" && find . | "$kernel/busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$logs/initramfs.gz"
    rm -rf "$room"
}

# Starts QEMU; `guest_up` waits for it.
guest_boot() {
    local name=$1 layer=$2 share number console accelerator=${guest_accel:-tcg} cpu=max
    shift 2
    share=$(guest_dir "$name")
    number=$(guest_address "$name")
    number=${number##*.}
    [[ $accelerator == tcg ]] || cpu=host
    # As the guest's root has it, and without symbolic links: an absolute one means another place where the root is not yet the root.
    if [[ -n $layer ]]; then
        layer=$(realpath "$layer")
        [[ $guest_root == / ]] || layer=${layer#"$(realpath "$guest_root")"}
    fi
    mkdir -p "$share"
    rm -f "$share"/{up,stop} "$share"/job-*
    cp "$repository/scripts/verbs/agent.sh" "$share/"
    [[ -p $share/monitor ]] || mkfifo "$share/monitor"
    cat >"$share/settings" <<SETTINGS
share=$share
layer=$layer
address=$(guest_address "$name")
device=$guest_device
device_module=$([[ $guest_device == rxe ]] && echo rdma_rxe || echo "$guest_device")
SETTINGS
    exec {console}<>"$share/monitor"
    guest_console[$name]=$console
    nice "$guest_qemu" -machine "q35,accel=$accelerator" -cpu "$cpu" -smp "$guest_cpus" -m "$guest_memory" \
        -nodefaults -no-reboot -display none -serial "file:$share/console.log" -monitor stdio \
        -kernel "$kernel/vmlinuz" -initrd "$logs/initramfs.gz" -append "console=ttyS0 quiet panic=-1 mitigations=off" \
        -fsdev "local,id=root,path=$guest_root,security_model=none,readonly=on,multidevs=remap" \
        -device virtio-9p-pci,fsdev=root,mount_tag=hostroot \
        -fsdev "local,id=share,path=$share,security_model=none" -device virtio-9p-pci,fsdev=share,mount_tag=share \
        -netdev "$@" -device "virtio-net-pci,netdev=n,romfile=,mac=52:54:00:12:34:$number" -device virtio-rng-pci \
        <"$share/monitor" >"$share/qemu.log" 2>&1 {lock}>&- &
    guest_pid[$name]=$!
}

# Waits until a guest takes jobs.
guest_up() {
    local name=$1 limit=${2:-$guest_boot_limit} begin=$SECONDS share
    share=$(guest_dir "$name")
    while [[ ! -e $share/up ]]; do
        if ! guest_alive "$name"; then
            echo "guest $name did not come up: $(tail -qn 2 "$share/qemu.log" "$share/console.log" 2>/dev/null | tr '\r\n' '  ')" >&2
            return 1
        elif ((SECONDS - begin > limit)); then
            echo "guest $name is not up after $limit s" >&2
            guest_kill "$name"
            return 1
        fi
        sleep 0.2
    done
}

guest_start() {
    guest_boot "$@" && guest_up "$1"
}

# guest_job NAME JOB SECONDS COMMAND: the command is a line for bash, and begins in the repository.
guest_job() {
    local share job=job-$2 limit=$3
    share=$(guest_dir "$1")
    rm -f "$share/$job".*
    {
        # What has connections of its own, and what has none; and a machine that is slower than most.
        echo "export FABRICAST_TEST_PROVIDER='verbs,verbs;ofi_rxm' FABRICAST_TEST_NODE=$(guest_address "$1") FABRICAST_TEST_PATIENCE=4"
        # What conformance rows leave for the table of providers; `part` takes it out of there.
        echo "export FABRICAST_RAN_ON=$share/ran-on.tsv"
        # The first for rxe, whose completion queues are smaller than what verbs;ofi_rxm asks for; the next two are what fabricast wants of it.
        # Shared receives are 4,096 of 16 KiB for each endpoint else, and to register so much takes an emulated guest seconds.
        echo "export FI_UNIVERSE_SIZE=16 FI_OFI_RXM_SAR_LIMIT=0 FI_OFI_RXM_USE_SRX=1 FI_OFI_RXM_MSG_RX_SIZE=256"
        export -p | grep -E '^declare -x (FABRICAST_(TEST|LIBFABRIC|SOAK|SEED|ROW|CASE|JOBS)|FI_|RUST_|VERBS_JOB_)' || true
        # shellcheck disable=SC2016  # the guest's PATH
        printf 'export PATH=%q:$PATH\n' "$logs/bin"
        [[ $guest_root != / ]] || printf 'cd %q || exit\n' "$repository"
        printf 'exec timeout -k 5 %q bash -c %q\n' "$limit" "$4"
    } >"$share/$job.new"
    mv "$share/$job.new" "$share/$job.sh"
}

guest_wait() {
    local name=$1 job=job-$2 limit=$3 begin=$SECONDS share
    share=$(guest_dir "$name")
    while [[ ! -e $share/$job.rc ]]; do
        guest_alive "$name" || return 125
        ((SECONDS - begin <= limit)) || return 124
        sleep 0.2
    done
    return "$(cat "$share/$job.rc")"
}

guest_monitor() { echo "$2" >&"${guest_console[$1]}"; }

# What is left when a guest is gone, however it went.
guest_forget() {
    local descriptor=${guest_console[$1]}
    wait "${guest_pid[$1]}" 2>/dev/null || true
    exec {descriptor}>&-
    unset "guest_pid[$1]" "guest_console[$1]"
}

guest_kill() {
    [[ -n ${guest_pid[$1]:-} ]] || return 0
    kill -KILL "${guest_pid[$1]}" 2>/dev/null || true
    guest_forget "$1"
}

guest_stop() {
    local begin=$SECONDS
    [[ -n ${guest_pid[$1]:-} ]] || return 0
    touch "$(guest_dir "$1")/stop"
    while guest_alive "$1" && ((SECONDS - begin < 20)); do sleep 0.2; done
    guest_kill "$1"
}

guest_stop_all() {
    local name
    for name in "${!guest_pid[@]}"; do guest_kill "$name"; done
}
