/* An event builder over ZeroMQ, to be measured beside `fabricast readout`: the same fragments, the
 * same counts, the same check. benches/peers/readout_pairs.py builds and runs it.
 *
 *   zmq_builder builder --detectors N --builders M [--check]
 *   zmq_builder source --to ADDRESS... --detectors N --size BYTES --seconds S [--check] [--copy]
 *
 * One source process with a thread for each detector, one process for each builder. A detector has
 * a PUSH socket for each builder, a builder one PULL socket; event n belongs to builder n modulo
 * their number. The high-water marks are ZeroMQ's own, 1000 messages on either side of each
 * connection; one I/O thread in each process. A fragment is one message: a header of 40 bytes, and
 * the payload, which the detector fills where it is sent from. Nothing is answered, granted or sent
 * again: a builder that is lost takes its events along, and only the counts at the end would say so.
 *
 * Memory of messages: pieces of a ring of the detector's, given to ZeroMQ without a copy and given
 * back by it (zmq_msg_init_data); with --copy ZeroMQ's own (zmq_msg_init_size), filled in place,
 * which is an allocation for each and no copy of ours either. Below 8 KiB ZeroMQ itself joins
 * messages by copying them, whichever it is.
 *
 * Each process ends with a line of JSON. Exit status: 0 when every count agrees. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

enum {
    DETECTORS_MAX = 64,
    BUILDERS_MAX = 64,
    /* Events between two looks at the trigger and the clock, as readout's detectors do. */
    BATCH = 128,
    /* Bytes of a detector's ring, and its pieces at most: as many as readout has. */
    RING = 16 << 20,
    PIECES = 16384,
    /* One event in so many has its latency recorded, as in readout. */
    SAMPLED = 13,
    BUCKETS = 38 * 16,
};

/* The kinds of message. */
enum { FRAGMENT = 2, END = 3 };

/* What stands before the bytes of a fragment: the fields, and the length, of readout's. */
struct header {
    uint8_t magic[2], kind, flags, detector, count;
    uint16_t port;
    uint32_t payload_len, crc;
    uint64_t event, serial, stamp;
};
_Static_assert(sizeof(struct header) == 40, "as long as readout's");

static void die(const char *what) {
    fprintf(stderr, "zmq_builder: %s: %s\n", what, zmq_strerror(errno));
    exit(1);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static uint64_t cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

/* ---- CRC32C -------------------------------------------------------------------------------- */

#ifdef __SSE4_2__
/* The instruction takes three cycles and can begin every cycle, so three stretches are summed side
 * by side; a table moves a sum over the bytes of one stretch. */
enum { LONG = 1360, SHORT = 168 };
static uint32_t over_long[4][256], over_short[4][256];

static uint64_t word_at(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static void make_table(uint32_t table[4][256], size_t len) {
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++) {
            uint64_t crc = value << (8 * byte);
            for (size_t at = 0; at < len; at += 8) crc = _mm_crc32_u64(crc, 0);
            table[byte][value] = (uint32_t)crc;
        }
}

static void crc_start(void) {
    make_table(over_long, LONG);
    make_table(over_short, SHORT);
}

static uint32_t moved(const uint32_t table[4][256], uint64_t crc) {
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^
           table[3][crc >> 24 & 255];
}

static uint64_t three(const uint32_t table[4][256], uint64_t a, const uint8_t *at, size_t len) {
    uint64_t b = 0, c = 0;
    for (size_t i = 0; i < len; i += 8) {
        a = _mm_crc32_u64(a, word_at(at + i));
        b = _mm_crc32_u64(b, word_at(at + len + i));
        c = _mm_crc32_u64(c, word_at(at + 2 * len + i));
    }
    return moved(table, moved(table, a) ^ b) ^ c;
}

static uint32_t crc32c(const uint8_t *at, size_t len) {
    uint64_t crc = 0xffffffff;
    for (; len >= 3 * LONG; at += 3 * LONG, len -= 3 * LONG) crc = three(over_long, crc, at, LONG);
    for (; len >= 3 * SHORT; at += 3 * SHORT, len -= 3 * SHORT)
        crc = three(over_short, crc, at, SHORT);
    for (; len >= 8; at += 8, len -= 8) crc = _mm_crc32_u64(crc, word_at(at));
    for (; len > 0; at++, len--) crc = _mm_crc32_u8((uint32_t)crc, *at);
    return ~(uint32_t)crc;
}
#else
static uint32_t table[256];

static void crc_start(void) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t crc = value;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
        table[value] = crc;
    }
}

static uint32_t crc32c(const uint8_t *at, size_t len) {
    uint32_t crc = 0xffffffff;
    for (; len > 0; at++, len--) crc = crc >> 8 ^ table[(crc ^ *at) & 255];
    return ~crc;
}
#endif

/* ---- the pattern of readout's fragments ---------------------------------------------------- */

#define STEP 0x9e3779b97f4a7c15u

static uint64_t first_word(uint64_t event, unsigned detector) {
    uint64_t product = (event << 16 | detector) * STEP;
    return product ^ product >> 32;
}

static uint32_t fill(uint64_t event, unsigned detector, uint8_t *at, size_t len) {
    uint64_t word = first_word(event, detector);
    size_t i = 0;
    for (; i + 8 <= len; i += 8, word += STEP) memcpy(at + i, &word, 8);
    memcpy(at + i, &word, len - i);
    return crc32c(at, len);
}

static bool is_right(uint64_t event, unsigned detector, uint32_t crc, const uint8_t *at,
                     size_t len) {
    uint64_t word = first_word(event, detector);
    return memcmp(at, &word, len < 8 ? len : 8) == 0 && crc32c(at, len) == crc;
}

/* ---- the command line ---------------------------------------------------------------------- */

static struct {
    const char *to[BUILDERS_MAX];
    unsigned builders, detectors;
    size_t size;
    double seconds;
    bool check, copy;
} args = {.detectors = 2, .size = 64, .seconds = 1};

static void parse(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--check") == 0) { args.check = true; continue; }
        if (strcmp(argv[i], "--copy") == 0) { args.copy = true; continue; }
        if (strcmp(argv[i], "--to") == 0 && args.builders < BUILDERS_MAX)
            args.to[args.builders++] = value;
        else if (strcmp(argv[i], "--detectors") == 0)
            args.detectors = (unsigned)atoi(value);
        else if (strcmp(argv[i], "--builders") == 0)
            args.builders = (unsigned)atoi(value);
        else if (strcmp(argv[i], "--size") == 0)
            args.size = strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            args.seconds = atof(value);
        else
            errno = EINVAL, die(argv[i]);
        i++;
    }
    if (args.detectors < 1 || args.detectors > DETECTORS_MAX || args.builders < 1 ||
        args.builders > BUILDERS_MAX || args.size < 1 || args.size > 1 << 20 || !(args.seconds > 0))
        errno = EINVAL, die("command line");
}

/* ---- the source ---------------------------------------------------------------------------- */

static void *context;

/* Which events there are: all detectors stop at the same one. */
static pthread_mutex_t trigger = PTHREAD_MUTEX_INITIALIZER;
static uint64_t claimed, last = UINT64_MAX;

static uint64_t claim(uint64_t next) {
    pthread_mutex_lock(&trigger);
    uint64_t limit = next + BATCH < last ? next + BATCH : last;
    if (limit > claimed) claimed = limit;
    pthread_mutex_unlock(&trigger);
    return limit;
}

struct piece {
    atomic_bool is_out;
};

static void give_back(void *data, void *piece) {
    (void)data;
    atomic_store_explicit(&((struct piece *)piece)->is_out, false, memory_order_release);
}

struct detector {
    pthread_t thread;
    unsigned number;
    uint64_t fragments, bytes;
    uint8_t *ring;
    struct piece *pieces;
    size_t stride, count, next;
};

/* A message of this length whose memory is to be filled. */
static void new_message(struct detector *d, zmq_msg_t *message, size_t len) {
    if (args.copy) {
        if (zmq_msg_init_size(message, len) != 0) die("zmq_msg_init_size");
        return;
    }
    struct piece *piece = &d->pieces[d->next];
    while (atomic_load_explicit(&piece->is_out, memory_order_acquire)) sched_yield();
    atomic_store_explicit(&piece->is_out, true, memory_order_relaxed);
    uint8_t *at = d->ring + d->next * d->stride;
    d->next = d->next + 1 < d->count ? d->next + 1 : 0;
    if (zmq_msg_init_data(message, at, len, give_back, piece) != 0) die("zmq_msg_init_data");
}

static void send_one(void *socket, zmq_msg_t *message) {
    while (zmq_msg_send(message, socket, 0) < 0)
        if (errno != EINTR) die("zmq_msg_send");
}

static void send_end(void *socket, unsigned detector, uint64_t fragments) {
    zmq_msg_t message;
    if (zmq_msg_init_size(&message, sizeof(struct header)) != 0) die("zmq_msg_init_size");
    struct header *header = zmq_msg_data(&message);
    *header = (struct header){.magic = "Z1", .kind = END, .detector = (uint8_t)detector,
                              .event = fragments * args.size, .serial = fragments};
    send_one(socket, &message);
}

static void *run_detector(void *of) {
    struct detector *d = of;
    void *sockets[BUILDERS_MAX];
    uint64_t sent[BUILDERS_MAX] = {0};
    for (unsigned b = 0; b < args.builders; b++) {
        sockets[b] = zmq_socket(context, ZMQ_PUSH);
        if (!sockets[b] || zmq_connect(sockets[b], args.to[b]) != 0) die(args.to[b]);
    }
    /* Until the connections are made: what is timed is a stream that stands. */
    usleep(200000);
    for (uint64_t next = 0, limit; (limit = claim(next)) > next;) {
        uint64_t stamp = now_ns();
        for (; next < limit; next++) {
            zmq_msg_t message;
            new_message(d, &message, sizeof(struct header) + args.size);
            struct header *header = zmq_msg_data(&message);
            uint8_t *payload = (uint8_t *)(header + 1);
            unsigned b = (unsigned)(next % args.builders);
            uint32_t crc = args.check ? fill(next, d->number, payload, args.size) : 0;
            *header = (struct header){.magic = "Z1", .kind = FRAGMENT,
                                      .detector = (uint8_t)d->number,
                                      .count = (uint8_t)args.detectors,
                                      .payload_len = (uint32_t)args.size, .crc = crc,
                                      .event = next, .serial = sent[b]++, .stamp = stamp};
            send_one(sockets[b], &message);
        }
    }
    for (unsigned b = 0; b < args.builders; b++) {
        d->fragments += sent[b];
        send_end(sockets[b], d->number, sent[b]);
        zmq_close(sockets[b]);
    }
    return NULL;
}

static int source(void) {
    struct detector detectors[DETECTORS_MAX] = {0};
    for (unsigned i = 0; i < args.detectors; i++) {
        struct detector *d = &detectors[i];
        d->number = i;
        d->stride = (sizeof(struct header) + args.size + 63) / 64 * 64;
        d->count = RING / d->stride < PIECES ? RING / d->stride : PIECES;
        d->ring = aligned_alloc(4096, RING);
        d->pieces = calloc(d->count, sizeof(struct piece));
        if (!d->ring || !d->pieces) die("memory");
        memset(d->ring, 0, RING);
    }
    for (unsigned i = 0; i < args.detectors; i++)
        if (pthread_create(&detectors[i].thread, NULL, run_detector, &detectors[i]) != 0)
            die("pthread_create");
    usleep(200000);
    uint64_t begun = now_ns(), cpu = cpu_ns();
    usleep((useconds_t)(args.seconds * 1e6));
    pthread_mutex_lock(&trigger);
    last = claimed;
    pthread_mutex_unlock(&trigger);
    uint64_t fragments = 0;
    for (unsigned i = 0; i < args.detectors; i++) {
        pthread_join(detectors[i].thread, NULL);
        fragments += detectors[i].fragments;
    }
    /* Ends when everything has been given to the kernel. */
    zmq_ctx_term(context);
    printf("{\"events\":%" PRIu64 ",\"fragments\":%" PRIu64 ",\"begun_ns\":%" PRIu64
           ",\"cpu_s\":%.6f}\n",
           last, fragments, begun, (double)(cpu_ns() - cpu) / 1e9);
    return fragments == last * args.detectors ? 0 : 1;
}

/* ---- the builder --------------------------------------------------------------------------- */

/* An event of which something is there, at the place that its number says. */
struct partial {
    uint64_t event, there;
    unsigned count;
    zmq_msg_t *parts;
};

static struct {
    struct partial *places;
    size_t mask, open;
    uint64_t built, fragments, bytes, order_errors, content_errors, ends, count_errors;
    uint64_t last_event[DETECTORS_MAX], received[DETECTORS_MAX];
    uint64_t latency[BUCKETS], latencies, latency_max;
    uint64_t first_ns, last_ns;
} b;

static struct partial *new_places(size_t count) {
    struct partial *places = calloc(count, sizeof *places);
    zmq_msg_t *parts = malloc(count * args.detectors * sizeof *parts);
    if (!places || !parts) die("memory");
    for (size_t i = 0; i < count; i++) places[i].parts = parts + i * args.detectors;
    return places;
}

/* Numbers of a builder rise in equal steps, so the low bits of their quotient say where one is; when
 * a place is another one's, there are twice as many from then on. */
static struct partial *place_at(struct partial *places, size_t mask, uint64_t event) {
    return &places[event / args.builders & mask];
}

static struct partial *find(struct partial *places, size_t mask, uint64_t event) {
    struct partial *place = place_at(places, mask, event);
    return place->there == 0 || place->event == event ? place : NULL;
}

static struct partial *place_of(uint64_t event) {
    struct partial *place;
    while (!(place = find(b.places, b.mask, event))) {
        size_t count = 2 * (b.mask + 1);
        struct partial *places = new_places(count);
        for (size_t i = 0; i <= b.mask; i++) {
            struct partial *old = &b.places[i], *at = place_at(places, count - 1, old->event);
            if (old->there == 0) continue;
            at->event = old->event, at->there = old->there, at->count = old->count;
            /* ZeroMQ's messages may be moved by their bytes only with zmq_msg_move. */
            for (unsigned d = 0; d < args.detectors; d++)
                if (old->there >> d & 1) {
                    zmq_msg_init(&at->parts[d]);
                    zmq_msg_move(&at->parts[d], &old->parts[d]);
                }
        }
        free(b.places[0].parts);
        free(b.places);
        b.places = places, b.mask = count - 1;
    }
    return place;
}

static void record(uint64_t ns) {
    unsigned power = ns < 16 ? 3 : 63 - (unsigned)__builtin_clzll(ns);
    size_t bucket = ns < 16 ? ns : (power - 3) * 16 + (ns >> (power - 4) & 15);
    b.latency[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    b.latencies++;
    if (ns > b.latency_max) b.latency_max = ns;
}

static double percentile_us(double share) {
    uint64_t rank = (uint64_t)((double)b.latencies * share + 0.999999), below = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        if ((below += b.latency[i]) >= rank && b.latencies > 0) {
            double power = (double)(i / 16) + 3;
            double width = (double)(1ull << (unsigned)(power - 4 > 0 ? power - 4 : 0));
            return (i < 16 ? (double)i : (double)(16 + i % 16) * width + width / 2) / 1e3;
        }
    return 0;
}

static void on_complete(struct partial *event) {
    bool timed = b.built % SAMPLED == 0;
    uint64_t now = timed ? now_ns() : 0;
    for (unsigned d = 0; d < args.detectors; d++) {
        struct header *header = zmq_msg_data(&event->parts[d]);
        if (timed) record(now - header->stamp);
        if (args.check && !is_right(event->event, d, header->crc, (uint8_t *)(header + 1),
                                    header->payload_len))
            b.content_errors++;
        zmq_msg_close(&event->parts[d]);
    }
    event->there = 0, event->count = 0;
    b.built++;
    b.open--;
}

static void on_fragment(zmq_msg_t *message, const struct header *header) {
    unsigned d = header->detector;
    if ((header->serial > 0 && header->event <= b.last_event[d]) ||
        header->serial != b.received[d])
        b.order_errors++;
    b.last_event[d] = header->event;
    b.received[d]++;
    b.fragments++;
    b.bytes += header->payload_len;
    struct partial *event = place_of(header->event);
    if (event->there >> d & 1) {
        b.order_errors++;
        zmq_msg_close(message);
        return;
    }
    b.open += event->there == 0;
    event->event = header->event;
    event->there |= 1ull << d;
    zmq_msg_init(&event->parts[d]);
    zmq_msg_move(&event->parts[d], message);
    if (++event->count == args.detectors) on_complete(event);
}

static void on_message(zmq_msg_t *message) {
    const struct header *header = zmq_msg_data(message);
    size_t len = zmq_msg_size(message);
    if (len < sizeof *header || memcmp(header->magic, "Z1", 2) != 0 ||
        len != sizeof *header + header->payload_len || header->detector >= args.detectors)
        errno = EPROTO, die("a message");
    if (header->kind == FRAGMENT) {
        on_fragment(message, header);
        return;
    }
    b.ends++;
    b.count_errors += header->serial != b.received[header->detector];
    zmq_msg_close(message);
}

static int builder(void) {
    void *socket = zmq_socket(context, ZMQ_PULL);
    if (!socket || zmq_bind(socket, "tcp://127.0.0.1:*") != 0) die("zmq_bind");
    char address[256];
    size_t len = sizeof address;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &len) != 0) die("ZMQ_LAST_ENDPOINT");
    printf("listening on %s\n", address);
    fflush(stdout);
    b.mask = 4095;
    b.places = new_places(b.mask + 1);
    zmq_msg_t message;
    zmq_msg_init(&message);
    uint64_t cpu = 0;
    while (b.ends < args.detectors) {
        if (zmq_msg_recv(&message, socket, 0) < 0) {
            if (errno == EINTR) continue;
            die("zmq_msg_recv");
        }
        if (b.first_ns == 0) b.first_ns = now_ns(), cpu = cpu_ns();
        on_message(&message);
        zmq_msg_init(&message);
    }
    b.last_ns = now_ns();
    zmq_close(socket);
    zmq_ctx_term(context);
    uint64_t errors = b.order_errors + b.content_errors + b.count_errors + b.open;
    printf("{\"events_built\":%" PRIu64 ",\"fragments\":%" PRIu64 ",\"bytes\":%" PRIu64
           ",\"errors\":%" PRIu64 ",\"first_ns\":%" PRIu64 ",\"last_ns\":%" PRIu64
           ",\"cpu_s\":%.6f,\"table\":%zu,\"latency_us_p50\":%.1f,\"latency_us_p99\":%.1f,"
           "\"latency_us_p999\":%.1f,\"latency_us_max\":%.1f}\n",
           b.built, b.fragments, b.bytes, errors, b.first_ns, b.last_ns,
           (double)(cpu_ns() - cpu) / 1e9, b.mask + 1, percentile_us(0.5), percentile_us(0.99),
           percentile_us(0.999), (double)b.latency_max / 1e3);
    return errors == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "version") == 0) {
        int major, minor, patch;
        zmq_version(&major, &minor, &patch);
        printf("%d.%d.%d\n", major, minor, patch);
        return 0;
    }
    if (argc < 2) errno = EINVAL, die("want source, builder or version");
    parse(argc, argv);
    /* Ends with the driver that started it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    crc_start();
    context = zmq_ctx_new();
    if (!context) die("zmq_ctx_new");
    return strcmp(argv[1], "source") == 0 ? source() : builder();
}
