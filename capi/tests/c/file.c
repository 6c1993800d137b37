/* Files: read and written now, by themselves, and in a batch; from plain memory and regions. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };

static unsigned char out[SIZE], in[SIZE];
static const fcast_region none = {0};

static void now(fcast_file file)
{
    fcast_file_moved moved;
    OK(fcast_file_write(file, none, out, SIZE, 0, NULL, &moved));
    CHECK(moved.bytes == SIZE && moved.back_end == FCAST_BACK_END_POSIX);
    uint64_t size;
    OK(fcast_file_size(file, &size));
    CHECK(size == SIZE);
    memset(in, 0, SIZE);
    fcast_file_options parallel = {.size = sizeof parallel, .parallel = 1, .task_size = 4096 * 16};
    parallel.direct = FCAST_DIRECT_OFF;
    OK(fcast_file_read(file, none, in, SIZE, 0, &parallel, &moved));
    CHECK(moved.bytes == SIZE && moved.direct_bytes == 0 && memcmp(in, out, SIZE) == 0);
    OK(fcast_file_read(file, none, in, SIZE, SIZE - 10, NULL, &moved));
    CHECK(moved.bytes == 10);
    OK(fcast_file_read(file, none, NULL, 0, 0, NULL, &moved));
    CHECK(moved.bytes == 0);
    IS(fcast_file_read(file, none, NULL, 1, 0, NULL, &moved), FCAST_INVALID);
    parallel.direct = 3;
    IS(fcast_file_read(file, none, in, 1, 0, &parallel, &moved), FCAST_INVALID);
    OK(fcast_file_sync(file, false));
    OK(fcast_file_sync(file, true));
}

/* One run of the file, and many pieces of memory: plain memory, and what a ring hands out. */
static void in_pieces(fcast_file file)
{
    fcast_file_moved moved;
    const fcast_bytes from[] = {{out + 1000, 5000}, {NULL, 0}, {out, 1000}};
    moved.bytes = 77;
    IS(fcast_file_writev(file, NULL, 1, 0, &moved), FCAST_INVALID);
    IS(fcast_file_writev(file, from, 3, 0, NULL), FCAST_INVALID);
    IS(fcast_file_writev(file, &(fcast_bytes){NULL, 1}, 1, 0, &moved), FCAST_INVALID);
    IS(fcast_file_readv(file, &(fcast_span){NULL, 1}, 1, 0, &moved), FCAST_INVALID);
    IS(fcast_file_readv(file, &(fcast_span){in, SIZE_MAX}, 1, 0, &moved), FCAST_INVALID);
    IS(fcast_file_readv((fcast_file){0}, NULL, 0, 0, &moved), FCAST_STALE);
    CHECK(moved.bytes == 77);
    OK(fcast_file_readv(file, NULL, 0, 0, &moved));
    CHECK(moved.bytes == 0);
    OK(fcast_file_writev(file, from, 3, SIZE, &moved));
    CHECK(moved.bytes == 6000);

    fcast_region region;
    fcast_ring ring;
    fcast_reservation reservation;
    fcast_payload payload;
    fcast_span spans[2];
    OK(fcast_region_allocate(8192, 0, -1, &region));
    OK(fcast_ring_create(region, 0, 0, &ring));
    for (int i = 0; i < 2; i++) {
        /* The second one goes over the end of the region. */
        OK(fcast_ring_reserve(ring, 6000, &reservation, spans));
        CHECK((spans[1].len != 0) == (i == 1));
        memset(spans[0].data, 0, spans[0].len);
        OK(fcast_file_readv(file, spans, 2, SIZE, &moved));
        CHECK(moved.bytes == 6000 && memcmp(spans[0].data, out + 1000, i == 0 ? 5000 : spans[0].len) == 0);
        OK(fcast_ring_commit(ring, reservation, 6000, &payload));
        OK(fcast_payload_release(payload));
    }
    CHECK(memcmp((char *)spans[1].data + spans[1].len - 1000, out, 1000) == 0);
    OK(fcast_ring_release(ring));
    OK(fcast_region_release(region));

    /* More pieces than the system takes at once; and short at the end of the file. */
    enum { PIECES = 3000 };
    static fcast_span many[PIECES];
    for (int i = 0; i < PIECES; i++)
        many[i] = (fcast_span){in + 2 * i, 2};
    memset(in, 0, 2 * PIECES);
    OK(fcast_file_readv(file, many, PIECES, SIZE, &moved));
    CHECK(moved.bytes == 6000 && memcmp(in, out + 1000, 5000) == 0 && memcmp(in + 5000, out, 1000) == 0);
    OK(fcast_file_readv(file, many, PIECES, SIZE + 5999, &moved));
    CHECK(moved.bytes == 1 && in[0] == out[999]);
    OK(fcast_file_truncate(file, SIZE));
}

static void by_themselves(fcast_file file, fcast_loop loop)
{
    fcast_region region;
    OK(fcast_region_allocate(SIZE, 0, -1, &region));
    void *base;
    OK(fcast_region_memory(region, &base, NULL));
    memcpy(base, out, SIZE);
    fcast_file_transfer transfer;
    fcast_file_moved moved;
    IS(fcast_file_begin_write(file, region, out, SIZE, SIZE, NULL, &transfer), FCAST_NOT_FOUND);
    OK(fcast_file_begin_write(file, region, base, SIZE, SIZE, NULL, &transfer));
    OK(fcast_file_transfer_wait(transfer, 60000, &moved));
    CHECK(moved.bytes == SIZE);
    OK(fcast_file_transfer_wait(transfer, 0, &moved));
    OK(fcast_file_transfer_release(transfer));
    IS(fcast_file_transfer_wait(transfer, 0, &moved), FCAST_STALE);

    uint64_t offset;
    OK(fcast_file_begin_append(file, none, out, 100, NULL, &offset, &transfer));
    CHECK(offset == 2 * SIZE);
    OK(fcast_file_transfer_wait(transfer, 60000, &moved));
    CHECK(moved.bytes == 100);
    OK(fcast_file_transfer_release(transfer));

    /* A loop is woken; the wait does not wait then. */
    memset(base, 0, SIZE);
    OK(fcast_file_begin_read(file, region, base, SIZE, SIZE, NULL, &transfer));
    OK(fcast_file_transfer_wake(transfer, loop));
    fcast_loop_event event;
    size_t count;
    OK(fcast_loop_run_once(loop, 60000, &event, 1, &count));
    CHECK(count == 1 && event.kind == FCAST_LOOP_WOKEN);
    OK(fcast_file_transfer_wait(transfer, 0, &moved));
    CHECK(moved.bytes == SIZE && memcmp(base, out, SIZE) == 0);
    OK(fcast_file_transfer_release(transfer));

    /* One that is released before its end, and its region before it. */
    OK(fcast_file_begin_read(file, region, base, SIZE, 0, NULL, &transfer));
    OK(fcast_region_release(region));
    OK(fcast_file_transfer_release(transfer));
    OK(fcast_file_begin_read(file, none, in, SIZE, 0, NULL, &transfer));
    OK(fcast_file_transfer_release(transfer));
    memset(in, 7, SIZE);
}

static void batch_of(fcast_file file, uint32_t back_end)
{
    enum { BLOCK = 4096, BLOCKS = 64, DEPTH = 16 };
    fcast_file_batch_settings settings = {.size = sizeof settings, .depth = 5000};
    settings.back_end = back_end;
    fcast_file_batch batch;
    IS(fcast_file_batch_create(&settings, &batch), FCAST_INVALID);
    settings.depth = DEPTH;
    OK(fcast_file_batch_create(&settings, &batch));
    memset(in, 0, SIZE);
    unsigned begun = 0, over = 0;
    while (over < BLOCKS) {
        while (begun < BLOCKS) {
            size_t at = (size_t)begun * BLOCK;
            fcast_status status = fcast_file_batch_read(batch, file, none, in + at, BLOCK, at, begun);
            if (status == FCAST_AGAIN)
                break;
            OK(status);
            begun++;
        }
        CHECK(begun - over == DEPTH || begun == BLOCKS);
        OK(fcast_file_batch_start(batch));
        fcast_file_batch_event events[DEPTH];
        size_t count;
        OK(fcast_file_batch_poll(batch, 1, 60000, events, DEPTH, &count));
        CHECK(count > 0);
        for (size_t i = 0; i < count; i++) {
            IS(events[i].status, FCAST_OK);
            size_t at = events[i].key * BLOCK;
            CHECK(events[i].moved.bytes == BLOCK && memcmp(in + at, out + at, BLOCK) == 0);
            over++;
        }
    }
    OK(fcast_file_batch_read(batch, file, none, in, SIZE, 0, 1));
    OK(fcast_file_batch_start(batch));
    OK(fcast_file_batch_cancel(batch, 1));
    OK(fcast_file_batch_release(batch));
    memset(in, 7, SIZE);
}

static void defaults(void)
{
    fcast_file_defaults defaults = {.size = sizeof defaults};
    OK(fcast_file_defaults_get(&defaults));
    CHECK(defaults.num_threads > 0 && defaults.compat != 0 && defaults.io_uring != 0);
    size_t task_size = defaults.task_size;
    defaults = (fcast_file_defaults){.size = sizeof defaults, .num_threads = 3};
    defaults.auto_direct_io_read = FCAST_SWITCH_ON;
    OK(fcast_file_defaults_set(&defaults));
    OK(fcast_file_defaults_get(&defaults));
    CHECK(defaults.num_threads == 3 && defaults.auto_direct_io_read == FCAST_SWITCH_ON);
    CHECK(defaults.task_size == task_size);
    defaults.num_threads = 100000;
    IS(fcast_file_defaults_set(&defaults), FCAST_INVALID);
    defaults.num_threads = 2;
    defaults.compat = 9;
    IS(fcast_file_defaults_set(&defaults), FCAST_INVALID);
    OK(fcast_file_defaults_get(&defaults));
    CHECK(defaults.num_threads == 3);
}

int main(void)
{
    defaults();
    for (size_t i = 0; i < SIZE; i++)
        out[i] = (unsigned char)(i % 251);
    char dir[] = "/tmp/fabricast-c-file-XXXXXX", path[128];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/run.dat", dir);
    fcast_file file;
    IS(fcast_file_open(path, "r", NULL, &file), FCAST_NOT_FOUND);
    CHECK(fcast_last_errno() == ENOENT);
    IS(fcast_file_open(path, "q", NULL, &file), FCAST_INVALID);
    IS(fcast_file_open(dir, "r", NULL, &file), FCAST_INVALID);
    fcast_file_settings settings = {.size = sizeof settings, .mode = 0600, .direct = 9};
    IS(fcast_file_open(path, "w+", &settings, &file), FCAST_INVALID);
    settings.direct = FCAST_DIRECT_DEFAULT;
    OK(fcast_file_open(path, "w+", &settings, &file));
    struct stat stat_of;
    CHECK(stat(path, &stat_of) == 0 && (stat_of.st_mode & 0777) == 0600);
    uint32_t offset, memory;
    OK(fcast_file_alignment(file, &offset, &memory));
    CHECK(offset > 0 && memory > 0);

    fcast_loop loop;
    OK(fcast_loop_create(NULL, &loop));
    now(file);
    in_pieces(file);
    by_themselves(file, loop);
    batch_of(file, FCAST_BACK_END_DEFAULT);
    batch_of(file, FCAST_BACK_END_POSIX);
    OK(fcast_loop_release(loop));

    fcast_file_stats stats = {.size = sizeof stats};
    OK(fcast_file_read_stats(file, &stats));
    CHECK(stats.write.operations == 4 && stats.write.bytes == 2 * SIZE + 6100);
    CHECK(stats.read.bytes >= 2 * SIZE && stats.read.latency_p99_ns > 0);

    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    fcast_file same;
    OK(fcast_file_from_fd(fd, NULL, &same));
    CHECK(close(fd) == 0);
    fcast_file_moved moved;
    OK(fcast_file_read(same, none, in, 16, 5, NULL, &moved));
    CHECK(moved.bytes == 16 && memcmp(in, out + 5, 16) == 0);
    IS(fcast_file_write(same, none, in, 16, 0, NULL, &moved), FCAST_INVALID);
    IS(fcast_file_writev(same, &(fcast_bytes){in, 16}, 1, 0, &moved), FCAST_INVALID);
    OK(fcast_file_release(same));
    OK(fcast_file_truncate(file, 5));
    OK(fcast_file_release(file));
    IS(fcast_file_sync(file, false), FCAST_STALE);
    CHECK(unlink(path) == 0 && rmdir(dir) == 0);
    puts("files");
    return 0;
}
