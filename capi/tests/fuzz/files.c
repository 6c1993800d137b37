/* Files: read and written now, in the background and in batches. */
#include "fuzz.h"

#include <fcntl.h>
#include <unistd.h>

/* Plain memory that nothing else uses, or a part of a region. */
static void *any_memory(fcast_region *region, size_t *len)
{
    if (once_in(2))
        return any_place(region, len);
    *region = (fcast_region){0};
    size_t offset = below(sizeof file_memory);
    *len = below(sizeof file_memory - offset + 1);
    return once_in(30) ? NULL : file_memory + offset;
}

static uint64_t any_offset(void) { return once_in(30) ? any_number() : below(1 << 17); }

static const fcast_file_options *any_options(unsigned char *place, size_t size)
{
    fcast_file_options options = {.size = sizeof options};
    options.task_size = once_in(4) ? below(1 << 16) : 0;
    options.direct = (uint32_t)below(once_in(9) ? 5 : 3);
    options.back_end = once_in(4) ? (uint32_t)below(5) : 0;
    options.parallel = once_in(4) ? (uint32_t)below(4) : 0;
    return once_in(2) ? NULL : sized_settings(&options, sizeof options, place, size);
}

static fcast_status open_file(void)
{
    static const char *const flags[] = {"r", "r+", "w", "w+", "a", "", "x", "\xff"};
    char path[300];
    unsigned char place[1024];
    fcast_file_settings settings = {.size = sizeof settings, .mode = once_in(4) ? 0600 : 0};
    settings.direct = once_in(4) ? (uint32_t)below(4) : 0;
    settings.back_end = once_in(4) ? (uint32_t)below(5) : 0;
    settings.compat = once_in(4) ? (uint32_t)below(4) : 0;
    fcast_file file = {UNTOUCHED};
    fcast_status status = checked(fcast_file_open(
        any_path(path, sizeof path), once_in(2) ? "w+" : flags[below(COUNT(flags))],
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        once_in(50) ? NULL : &file));
    if (status == FCAST_OK)
        keep(DATA_FILE, file.id);
    else
        MUST(file.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status from_fd(void)
{
    char path[300];
    const char *name = any_path(path, sizeof path);
    int fd = name == NULL ? -1 : open(name, O_RDWR | O_CREAT, 0600);
    fcast_file file = {UNTOUCHED};
    fcast_status status = checked(fcast_file_from_fd(fd, NULL, &file));
    if (fd >= 0)
        close(fd);
    if (status == FCAST_OK)
        keep(DATA_FILE, file.id);
    return status;
}

static fcast_status about_file(void)
{
    fcast_file file = {pick(DATA_FILE)};
    uint64_t bytes = 0;
    uint32_t offset = 0, memory = 0;
    fcast_file_stats stats = {.size = sizeof stats};
    checked(fcast_file_size(file, once_in(20) ? NULL : &bytes));
    checked(fcast_file_alignment(file, once_in(20) ? NULL : &offset, &memory));
    checked(fcast_file_sync(file, once_in(2)));
    return checked(fcast_file_read_stats(file, once_in(20) ? NULL : &stats));
}

static fcast_status truncate_file(void)
{
    return checked(fcast_file_truncate((fcast_file){pick(DATA_FILE)}, below(1 << 17)));
}

static fcast_status move_now(void)
{
    unsigned char place[1024];
    fcast_region region;
    fcast_file_moved moved;
    size_t len;
    void *data = any_memory(&region, &len);
    fcast_file file = {pick(DATA_FILE)};
    const fcast_file_options *options = any_options(place, sizeof place);
    if (once_in(2))
        return checked(fcast_file_read(file, region, data, len, any_offset(), options,
                                       once_in(9) ? NULL : &moved));
    return checked(
        fcast_file_write(file, region, data, len, any_offset() % (1 << 20), options, &moved));
}

static fcast_status move_pieces(void)
{
    fcast_span into[5];
    fcast_bytes from[5];
    fcast_file_moved moved;
    fcast_file file = {pick(DATA_FILE)};
    size_t count = below(6);
    /* No two of them overlap. */
    for (size_t i = 0; i < count; i++) {
        size_t at = i * 8192 + below(8), len = once_in(4) ? 0 : below(8192 - 8);
        into[i] = (fcast_span){once_in(20) ? NULL : file_memory + at, len};
        from[i] = (fcast_bytes){into[i].data, once_in(50) ? SIZE_MAX : len};
    }
    if (once_in(2))
        return checked(fcast_file_readv(file, once_in(50) ? NULL : into, count, any_offset(),
                                        once_in(9) ? NULL : &moved));
    return checked(fcast_file_writev(file, once_in(50) ? NULL : from, count,
                                     any_offset() % (1 << 20), &moved));
}

static fcast_status begin(void)
{
    unsigned char place[1024];
    fcast_region region;
    size_t len;
    void *data = any_memory(&region, &len);
    fcast_file file = {pick(DATA_FILE)};
    fcast_file_transfer transfer = {UNTOUCHED};
    const fcast_file_options *options = any_options(place, sizeof place);
    uint64_t offset = any_offset() % (1 << 20);
    fcast_status status;
    switch (below(3)) {
    case 0:
        status = fcast_file_begin_read(file, region, data, len, offset, options, &transfer);
        break;
    case 1:
        status = fcast_file_begin_write(file, region, data, len, offset, options, &transfer);
        break;
    default:
        status =
            fcast_file_begin_append(file, region, data, len % 4096, options, &offset, &transfer);
    }
    if (checked(status) == FCAST_OK)
        keep(FILE_TRANSFER, transfer.id);
    else
        MUST(transfer.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status wait_for_transfer(void)
{
    fcast_file_moved moved;
    return checked(fcast_file_transfer_wait((fcast_file_transfer){pick(FILE_TRANSFER)},
                                            (uint32_t)below(3), once_in(9) ? NULL : &moved));
}

static fcast_status wake_by_transfer(void)
{
    return checked(fcast_file_transfer_wake((fcast_file_transfer){pick(FILE_TRANSFER)},
                                            (fcast_loop){pick(LOOP)}));
}

static fcast_status create_batch(void)
{
    unsigned char place[1024];
    fcast_file_batch_settings settings = {.size = sizeof settings, .depth = (uint32_t)below(20)};
    settings.back_end = once_in(4) ? (uint32_t)below(5) : 0;
    fcast_file_batch batch = {UNTOUCHED};
    fcast_status status = checked(fcast_file_batch_create(
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        &batch));
    if (status == FCAST_OK)
        keep(BATCH, batch.id);
    return status;
}

static fcast_status batch_move(void)
{
    fcast_region region;
    size_t len;
    void *data = any_memory(&region, &len);
    fcast_file file = {pick(DATA_FILE)};
    fcast_file_batch batch = {pick(BATCH)};
    if (once_in(2))
        return checked(
            fcast_file_batch_read(batch, file, region, data, len, any_offset(), below(8)));
    return checked(
        fcast_file_batch_write(batch, file, region, data, len, any_offset() % (1 << 20), below(8)));
}

static fcast_status batch_poll(void)
{
    fcast_file_batch_event events[8];
    size_t count = SIZE_MAX, capacity = below(9);
    fcast_status status =
        checked(fcast_file_batch_poll((fcast_file_batch){pick(BATCH)}, below(3), (uint32_t)below(3),
                                      once_in(30) ? NULL : events, capacity, &count));
    MUST(status != FCAST_OK || count <= capacity, "%zu events in %zu places", count, capacity);
    return status;
}

static fcast_status batch_start(void)
{
    return checked(fcast_file_batch_start((fcast_file_batch){pick(BATCH)}));
}

static fcast_status batch_cancel(void)
{
    return checked(fcast_file_batch_cancel((fcast_file_batch){pick(BATCH)}, below(10)));
}

static fcast_status defaults(void)
{
    fcast_file_defaults is = {.size = sizeof is};
    fcast_status status = checked(fcast_file_defaults_get(once_in(20) ? NULL : &is));
    if (status == FCAST_OK)
        checked(fcast_file_defaults_set(&is));
    return status;
}

RELEASE(DATA_FILE, file, fcast_file_release)
RELEASE(BATCH, file_batch, fcast_file_batch_release)
RELEASE(FILE_TRANSFER, file_transfer, fcast_file_transfer_release)

__attribute__((constructor)) static void add_the_kinds(void)
{
    add_kind(DATA_FILE, 2, 6, "file", open_file, end_file);
    add_kind(BATCH, 1, 3, "batch", create_batch, end_file_batch);
    add_kind(FILE_TRANSFER, 0, 8, "file transfer", NULL, end_file_transfer);
}

static const struct call table[] = {
    {"fcast_file_open", 4, open_file},
    {"fcast_file_from_fd", 1, from_fd},
    {"fcast_file_size", 1, about_file},
    {"fcast_file_alignment", 1, about_file},
    {"fcast_file_sync", 1, about_file},
    {"fcast_file_read_stats", 1, about_file},
    {"fcast_file_truncate", 1, truncate_file},
    {"fcast_file_read", 5, move_now},
    {"fcast_file_write", 5, move_now},
    {"fcast_file_readv", 5, move_pieces},
    {"fcast_file_writev", 5, move_pieces},
    {"fcast_file_begin_read", 5, begin},
    {"fcast_file_begin_write", 5, begin},
    {"fcast_file_begin_append", 5, begin},
    {"fcast_file_transfer_wait", 8, wait_for_transfer},
    {"fcast_file_transfer_wake", 3, wake_by_transfer},
    {"fcast_file_transfer_release", 5, release_file_transfer},
    {"fcast_file_batch_create", 1, create_batch},
    {"fcast_file_batch_read", 6, batch_move},
    {"fcast_file_batch_write", 6, batch_move},
    {"fcast_file_batch_poll", 10, batch_poll},
    {"fcast_file_batch_start", 3, batch_start},
    {"fcast_file_batch_cancel", 3, batch_cancel},
    {"fcast_file_batch_release", 1, release_file_batch},
    {"fcast_file_defaults_get", 1, defaults},
    {"fcast_file_defaults_set", 1, defaults},
    {"fcast_file_release", 3, release_file},
};
ADD_CALLS(table)
