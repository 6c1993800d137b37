/* Stores of the program's own: functions that answer whatever they like, at once or later. */
#include "fuzz.h"

/* On threads of the library's, where nobody has made a beginning for any_number. */
static unsigned in_store(unsigned limit)
{
    static atomic_uint turn;
    uint64_t number = atomic_fetch_add(&turn, 1) * UINT64_C(0x9e3779b97f4a7c15);
    return (unsigned)(number >> 40) % limit;
}

/* Mostly FCAST_OK. */
static fcast_status some_status(void) { return in_store(6) == 0 ? (fcast_status)in_store(24) : 0; }

static void fill(fcast_object_info *info)
{
    info->size = in_store(9) == 0 ? UINT64_MAX : in_store(6000);
    info->modified_ns = (int64_t)in_store(3) - 1;
    info->checksum_kind = in_store(9) == 0 ? in_store(4) : FCAST_OFF;
    info->checksum = in_store(2);
    memset(info->etag, in_store(30) == 0 ? 0 : 'e', in_store(20) == 0 ? sizeof info->etag : 4);
}

/* A thing of the store's: whoever uses one that was ended reads freed memory. */
static void *new_thing(void)
{
    unsigned char *thing = malloc(1);
    *thing = 7;
    return thing;
}

static void end_thing(void *context, void *thing)
{
    read_all(context, sizeof(struct external));
    MUST(*(unsigned char *)thing == 7, "what is ended is no such thing");
    free(thing);
}

static fcast_status store_head(void *context, const char *name, fcast_object_info *info)
{
    read_all(context, sizeof(struct external)), read_all(name, strlen(name) + 1);
    fill(info);
    return some_status();
}

static fcast_status store_open(void *context, const char *name, fcast_object_info *info,
                               void **object)
{
    (void)context;
    read_all(name, strlen(name) + 1);
    fill(info);
    fcast_status status = some_status();
    if (status == FCAST_OK)
        *object = new_thing();
    return status;
}

static fcast_status answer(fcast_object_piece piece, size_t len)
{
    switch (in_store(8)) {
    case 0:
        return FCAST_TIMED_OUT;
    case 1:
        /* By whom it comes to, or at the end. */
        keep(PIECE, piece.id);
        return FCAST_OK;
    case 2:
        return fcast_object_piece_done(piece, (fcast_status)in_store(24), len + in_store(3) - 1);
    default:
        return fcast_object_piece_done(piece, FCAST_OK, len);
    }
}

static fcast_status store_read(void *context, void *object, uint64_t at, void *data, size_t len,
                               fcast_object_piece piece)
{
    (void)context, (void)at;
    read_all(object, 1);
    memset(data, 1, len);
    return answer(piece, len);
}

static fcast_status store_begin(void *context, const char *name, uint64_t len, uint32_t condition,
                                const char *etag, void **upload)
{
    (void)context, (void)len;
    read_all(name, strlen(name) + 1);
    MUST((etag != NULL) == (condition == FCAST_PUT_MATCHES), "condition %u", condition);
    fcast_status status = some_status();
    if (status == FCAST_OK)
        *upload = new_thing();
    return status;
}

static fcast_status store_write(void *context, void *upload, uint64_t at, const void *data,
                                size_t len, fcast_object_piece piece)
{
    (void)context, (void)at;
    read_all(upload, 1), read_all(data, len);
    return answer(piece, len);
}

static fcast_status store_commit(void *context, void *upload, uint64_t crc64,
                                 fcast_object_info *info)
{
    (void)crc64;
    end_thing(context, upload);
    if (in_store(3) == 0)
        fill(info);
    return some_status();
}

static _Atomic uint64_t last_list;

static fcast_status store_list(void *context, const char *prefix, const char *start_after,
                               size_t limit, fcast_object_list into)
{
    (void)context, (void)limit;
    read_all(prefix, strlen(prefix) + 1), read_all(start_after, strlen(start_after) + 1);
    atomic_store(&last_list, into.id);
    static const char *const names[] = {"a//b", "file0", "file1", "file2", "o1", "o1", "o2"};
    for (size_t i = 0; i < COUNT(names); i++) {
        fcast_object_info info = {0};
        fill(&info);
        fcast_object_list_add(into, names[i], &info);
    }
    return some_status();
}

static fcast_status store_remove(void *context, const char *name, const char *etag)
{
    (void)context, (void)etag;
    read_all(name, strlen(name) + 1);
    return some_status();
}

/* Asks it for something with a client of its own, which random calls seldom come to. */
static void ask(fcast_fabric fabric, fcast_object_service service)
{
    char address[256] = "";
    fcast_object_client client = {0};
    fcast_object_remote remote = {0};
    fcast_region region = {0};
    fcast_object_memory memory = {0};
    fcast_object_info info;
    void *base = NULL;
    fcast_object_remote_settings settings = {.size = sizeof settings, .connect_timeout_ms = 2000};
    checked(fcast_object_service_address(service, address, sizeof address, NULL));
    checked(fcast_region_allocate(1 << 14, 0, -1, &region));
    checked(fcast_region_memory(region, &base, NULL));
    checked(fcast_object_client_open(fabric, NULL, &client));
    checked(fcast_object_memory_register(client, region, base, 1 << 14,
                                         FCAST_OBJECT_GET | FCAST_OBJECT_PUT, &memory));
    fcast_status status =
        checked(fcast_object_remote_connect(client, fabric, address, &settings, &remote));
    for (int i = 0; status == FCAST_OK && i < 12; i++) {
        uint64_t len = below(1 << 14);
        if (once_in(2))
            checked(fcast_object_remote_get(remote, "o1", memory, 0, len, below(100), 200, &info));
        else
            checked(fcast_object_remote_put(remote, "o1", memory, 0, len, FCAST_PUT_ANY, NULL, 200,
                                            &info));
    }
    fcast_object_remote_release(remote);
    fcast_object_memory_release(memory);
    fcast_object_client_release(client);
    fcast_region_release(region);
}

static fcast_status start_store(void)
{
    struct external *external = new_external(64);
    fcast_object_store_calls calls = {sizeof calls, external, external_released, store_head,
                                      store_open,   store_read, end_thing, store_begin,
                                      store_write,  store_commit, end_thing, store_list,
                                      store_remove, (uint32_t)below(2), once_in(40)};
    if (once_in(9))
        calls.head = NULL;
    if (once_in(40))
        calls.write = NULL;
    if (once_in(20))
        calls.begin = NULL, calls.list = NULL, calls.remove = NULL;
    bool is_wrong = once_in(40);
    if (is_wrong)
        calls.size = once_in(2) ? 7 : 0;
    const char *local = strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0";
    fcast_object_service_settings settings = {.size = sizeof settings, .read_only = once_in(4)};
    settings.piece_bytes = 4096;
    settings.stall_ms = 10 + (uint32_t)below(200);
    fcast_object_service service = {UNTOUCHED};
    fcast_fabric fabric = {pick(FABRIC)};
    fcast_status status = checked(fcast_object_service_start_store(
        &calls, fabric, local, once_in(2) ? fabric : (fcast_fabric){pick(FABRIC)},
        once_in(3) ? NULL : &settings, once_in(40) ? NULL : &service));
    /* The library could not know of it. */
    if (is_wrong)
        external_released(external);
    if (status == FCAST_OK) {
        if (once_in(2))
            ask(fabric, service);
        keep_service(service);
    }
    return status;
}

static fcast_status piece_done(void)
{
    uint64_t id = pick(PIECE);
    return used_up(PIECE, id,
                   fcast_object_piece_done((fcast_object_piece){id}, (fcast_status)below(20),
                                           once_in(2) ? 4096 : any_number()));
}

static fcast_status end_piece(uint64_t id)
{
    return fcast_object_piece_done((fcast_object_piece){id}, FCAST_SYSTEM, 0);
}

static fcast_status list_add(void)
{
    fcast_object_info info = {.etag = "e"};
    uint64_t id = once_in(2) ? atomic_load(&last_list) : any_number();
    return checked(fcast_object_list_add((fcast_object_list){id}, once_in(9) ? NULL : "z",
                                         once_in(9) ? NULL : &info));
}

__attribute__((constructor)) static void add_the_kinds(void)
{
    add_kind(PIECE, 0, 40, "piece", NULL, end_piece);
}

static const struct call table[] = {
    {"fcast_object_service_start_store", 1, start_store},
    {"fcast_object_piece_done", 4, piece_done},
    {"fcast_object_list_add", 1, list_add},
};
ADD_CALLS(table)
