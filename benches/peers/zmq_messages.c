/* Messages over ZeroMQ, to be measured beside the library's: benches/peers/peers.py builds and runs it.
 *
 *   zmq_messages pull                                  zmq_messages push --to A --size N --seconds S
 *   zmq_messages xpub --subscribers M --size N --seconds S        zmq_messages sub --to A --subscribers M
 *   zmq_messages rep                                   zmq_messages req --to A --size N --seconds S
 *   zmq_messages pub --size N --seconds S              zmq_messages watch --to A --seconds S [--sleep-us U]
 *
 * tcp, one I/O thread in each process, high-water marks of 1000 messages. `pull`, `rep`, `xpub` and
 * `pub` listen, say where, and serve one run. A run is counted by its receiver between two marks,
 * as `bench` does; of `xpub` all subscribers get everything (ZMQ_XPUB_NODROP), in one process, each
 * with a socket of its own, as there. `pub` drops what a subscriber has no room for, which is
 * ZeroMQ's default, and `watch` counts what one subscriber gets in a time, sleeping after each.
 *
 * Messages of 4 KiB and more are given to ZeroMQ without a copy (zmq_msg_init_data), shorter ones
 * are copied into messages of its own, whichever is faster.
 *
 * Each process ends with a line of JSON. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { SUBSCRIBERS_MAX = 64, SIZE_MAX_BYTES = 1 << 29, NO_COPY_FROM = 4096, SAMPLES_MAX = 1 << 21 };
/* What stands in a message's first byte. */
enum { MESSAGE, BEGIN, END };

static struct {
    const char *to;
    size_t size;
    double seconds;
    int subscribers, sleep_us;
} options = {.size = 64, .seconds = 1, .subscribers = 1};

static void die(const char *what) {
    fprintf(stderr, "zmq_messages: %s: %s\n", what, zmq_strerror(errno));
    exit(1);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static uint64_t cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
static uint64_t run_ns(void) { return (uint64_t)(options.seconds * 1e9); }
static uint64_t warm_ns(void) { return run_ns() / 5; }

/* ---- sockets -------------------------------------------------------------------------------- */

static void *context;

static void *open_socket(int type) {
    void *opened = zmq_socket(context, type);
    int patience_ms = 60000;
    if (opened == NULL) die("zmq_socket");
    /* A run that hangs ends with an error. */
    zmq_setsockopt(opened, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(opened, ZMQ_SNDTIMEO, &patience_ms, sizeof patience_ms);
    return opened;
}

static void *listen_with(void *opened) {
    char endpoint[256];
    size_t len = sizeof endpoint;
    if (zmq_bind(opened, "tcp://127.0.0.1:*") != 0) die("zmq_bind");
    if (zmq_getsockopt(opened, ZMQ_LAST_ENDPOINT, endpoint, &len) != 0) die("ZMQ_LAST_ENDPOINT");
    printf("listening on %s\n", endpoint);
    fflush(stdout);
    return opened;
}

static void *connect_with(void *opened) {
    if (options.to == NULL || zmq_connect(opened, options.to) != 0) die("zmq_connect");
    return opened;
}

/* ---- sending -------------------------------------------------------------------------------- */

static uint8_t *payload;

static void keep(void *data, void *hint) {
    (void)data;
    (void)hint;
}

static void send_message(void *to) {
    zmq_msg_t message;
    if (options.size >= NO_COPY_FROM) {
        if (zmq_msg_init_data(&message, payload, options.size, keep, NULL) != 0) die("a message");
    } else {
        if (zmq_msg_init_size(&message, options.size) != 0) die("a message");
        memcpy(zmq_msg_data(&message), payload, options.size);
    }
    if (zmq_msg_send(&message, to, 0) < 0) die("zmq_msg_send");
}

static void send_mark(void *to, uint8_t mark) {
    if (zmq_send(to, &mark, 1, 0) < 0) die("zmq_send");
}

static void send_for(void *to, uint64_t nanoseconds) {
    uint64_t end = now_ns() + nanoseconds;
    do
        for (int i = 0; i < 16; i++) send_message(to);
    while (now_ns() < end);
}

/* Warm-up, mark, messages, mark. */
static void send_run(void *to) {
    send_for(to, warm_ns());
    send_mark(to, BEGIN);
    uint64_t cpu = cpu_ns();
    send_for(to, run_ns());
    send_mark(to, END);
    printf("{\"cpu_s\":%.6f}\n", (double)(cpu_ns() - cpu) / 1e9);
}

/* ---- receiving ------------------------------------------------------------------------------ */

static struct {
    int marks[3];
    uint64_t messages, bytes, begun, ended, cpu;
} counts;

/* False when the last of `sockets` has its end mark. */
static bool count_message(const zmq_msg_t *message, int sockets) {
    size_t size = zmq_msg_size(message);
    if (size > 1) {
        if (counts.begun != 0) counts.messages++, counts.bytes += size;
        return true;
    }
    uint8_t mark = *(const uint8_t *)zmq_msg_data((zmq_msg_t *)message);
    if (mark > END || ++counts.marks[mark] < sockets) return true;
    if (mark == BEGIN) {
        counts.begun = now_ns();
        counts.cpu = cpu_ns();
        return true;
    }
    counts.ended = now_ns();
    return false;
}

static void receive_run(void **sockets, int count) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (count == 1) {
        do
            if (zmq_msg_recv(&message, sockets[0], 0) < 0) die("zmq_msg_recv");
        while (count_message(&message, 1));
    } else {
        zmq_pollitem_t items[SUBSCRIBERS_MAX];
        bool more = true;
        for (int i = 0; i < count; i++) items[i] = (zmq_pollitem_t){.socket = sockets[i], .events = ZMQ_POLLIN};
        while (more) {
            if (zmq_poll(items, count, 60000) <= 0) die("nothing came");
            for (int i = 0; i < count; i++)
                /* As many as lie there, but not of one alone. */
                for (int n = 0; n < 256 && items[i].revents && zmq_msg_recv(&message, sockets[i], ZMQ_DONTWAIT) >= 0; n++)
                    more &= count_message(&message, count);
        }
    }
    double seconds = (double)(counts.ended - counts.begun) / 1e9;
    printf("{\"messages\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"seconds\":%.6f,\"cpu_s\":%.6f}\n", counts.messages,
           counts.bytes, seconds, (double)(cpu_ns() - counts.cpu) / 1e9);
}

/* ---- what a process does -------------------------------------------------------------------- */

static void pull(void) {
    void *from = listen_with(open_socket(ZMQ_PULL));
    receive_run(&from, 1);
    zmq_close(from);
}

static void push(void) {
    void *to = connect_with(open_socket(ZMQ_PUSH));
    send_run(to);
    zmq_close(to);
}

static void await_subscribers(void *from) {
    for (int there = 0; there < options.subscribers; there++) {
        zmq_msg_t subscription;
        zmq_msg_init(&subscription);
        if (zmq_msg_recv(&subscription, from, 0) < 0) die("no subscribers");
        zmq_msg_close(&subscription);
    }
}

static void publish(bool lossless) {
    int on = 1;
    void *to = open_socket(ZMQ_XPUB);
    zmq_setsockopt(to, ZMQ_XPUB_VERBOSE, &on, sizeof on);
    if (lossless) zmq_setsockopt(to, ZMQ_XPUB_NODROP, &on, sizeof on);
    listen_with(to);
    await_subscribers(to);
    if (lossless) {
        send_run(to);
    } else {
        /* Ended by its starter, when all who watch are done. */
        send_for(to, 60000000000);
    }
    zmq_close(to);
}

static void *subscribe(void) {
    void *from = connect_with(open_socket(ZMQ_SUB));
    zmq_setsockopt(from, ZMQ_SUBSCRIBE, "", 0);
    return from;
}

static void sub(void) {
    void *sockets[SUBSCRIBERS_MAX];
    for (int i = 0; i < options.subscribers; i++) sockets[i] = subscribe();
    receive_run(sockets, options.subscribers);
    for (int i = 0; i < options.subscribers; i++) zmq_close(sockets[i]);
}

static void watch(void) {
    void *from = subscribe();
    zmq_msg_t message;
    uint64_t messages = 0, begun = 0, now;
    zmq_msg_init(&message);
    do {
        if (zmq_msg_recv(&message, from, 0) < 0) die("zmq_msg_recv");
        now = now_ns();
        if (begun == 0) begun = now + warm_ns();
        messages += now >= begun;
        if (options.sleep_us != 0) usleep((useconds_t)options.sleep_us);
    } while (now < begun + run_ns());
    printf("{\"messages\":%" PRIu64 ",\"seconds\":%.6f}\n", messages, (double)(now - begun) / 1e9);
    zmq_close(from);
}

static void rep(void) {
    void *socket = listen_with(open_socket(ZMQ_REP));
    zmq_msg_t message;
    size_t size;
    zmq_msg_init(&message);
    do {
        if (zmq_msg_recv(&message, socket, 0) < 0) die("zmq_msg_recv");
        size = zmq_msg_size(&message);
        if (zmq_msg_send(&message, socket, 0) < 0) die("zmq_msg_send");
    } while (size > 1);
    printf("{}\n");
    zmq_close(socket);
}

static int by_size(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static void req(void) {
    void *socket = connect_with(open_socket(ZMQ_REQ));
    uint32_t *samples = malloc(SAMPLES_MAX * sizeof *samples);
    size_t count = 0;
    zmq_msg_t answer;
    zmq_msg_init(&answer);
    if (samples == NULL) die("memory");
    uint64_t begun = now_ns() + warm_ns(), now = 0;
    while (now < begun + run_ns() && count < SAMPLES_MAX) {
        uint64_t sent = now_ns();
        send_message(socket);
        if (zmq_msg_recv(&answer, socket, 0) < 0) die("zmq_msg_recv");
        now = now_ns();
        if (sent >= begun) samples[count++] = (uint32_t)(now - sent);
    }
    send_mark(socket, END);
    if (zmq_msg_recv(&answer, socket, 0) < 0 || count == 0) die("no round trip");
    qsort(samples, count, sizeof *samples, by_size);
    printf("{\"messages\":%zu,\"p50_us\":%.3f,\"p99_us\":%.3f}\n", 2 * count, samples[count / 2] / 2e3,
           samples[count * 99 / 100] / 2e3);
    free(samples);
    zmq_close(socket);
}

int main(int argc, char **argv) {
    /* Not longer than whoever started it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char *role = argc > 1 ? argv[1] : "";
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--to") == 0) options.to = value;
        else if (strcmp(name, "--size") == 0) options.size = strtoul(value, NULL, 10);
        else if (strcmp(name, "--seconds") == 0) options.seconds = strtod(value, NULL);
        else if (strcmp(name, "--subscribers") == 0) options.subscribers = atoi(value);
        else if (strcmp(name, "--sleep-us") == 0) options.sleep_us = atoi(value);
        else errno = EINVAL, die(name);
    }
    /* One byte is a mark. */
    if (options.size < 2 || options.size > SIZE_MAX_BYTES || options.subscribers < 1 || options.subscribers > SUBSCRIBERS_MAX)
        errno = EINVAL, die("--size or --subscribers");
    if (strcmp(role, "version") == 0) {
        int major, minor, patch;
        zmq_version(&major, &minor, &patch);
        printf("%d.%d.%d\n", major, minor, patch);
        return 0;
    }
    payload = calloc(1, options.size);
    context = zmq_ctx_new();
    if (payload == NULL || context == NULL) die("memory");
    if (strcmp(role, "pull") == 0) pull();
    else if (strcmp(role, "push") == 0) push();
    else if (strcmp(role, "xpub") == 0) publish(true);
    else if (strcmp(role, "pub") == 0) publish(false);
    else if (strcmp(role, "sub") == 0) sub();
    else if (strcmp(role, "watch") == 0) watch();
    else if (strcmp(role, "rep") == 0) rep();
    else if (strcmp(role, "req") == 0) req();
    else errno = EINVAL, die("the first word");
    fflush(stdout);
    /* Waits until what was sent has left. */
    zmq_ctx_term(context);
    return 0;
}
