/* A store of the program's own behind a service: objects in an array, and what stores do wrong. */
#include "objects.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { SIZE = 1 << 16, PIECE = 1 << 14, OBJECTS = 8 };

static unsigned char content[SIZE];

/* An object, or one that is being put; `users` read it, or wait for its place. */
struct object {
    char name[64];
    fcast_object_info info;
    unsigned users;
    unsigned char *bytes;
};

struct store {
    pthread_mutex_t lock;
    /* In the order of their names. */
    struct object *objects[OBJECTS];
    size_t count;
    atomic_int opened, closed, begun, committed, aborted, pieces, released;
    fcast_object_service service;
};

static void drop(struct object *it)
{
    if (--it->users > 0)
        return;
    free(it->bytes);
    free(it);
}

/* Where an object is, or where it would be. */
static size_t place_of(struct store *store, const char *name, bool *is_there)
{
    size_t at = 0;
    while (at < store->count && strcmp(store->objects[at]->name, name) < 0)
        at++;
    *is_there = at < store->count && strcmp(store->objects[at]->name, name) == 0;
    return at;
}

static fcast_status store_open(void *context, const char *name, fcast_object_info *info,
                               void **object)
{
    struct store *store = context;
    if (strcmp(name, "fails") == 0)
        return FCAST_SYSTEM;
    if (strcmp(name, "nonsense") == 0)
        return 4711;
    pthread_mutex_lock(&store->lock);
    bool is_there;
    size_t at = place_of(store, name, &is_there);
    if (is_there) {
        struct object *found = store->objects[at];
        found->users++;
        *info = found->info;
        *object = found;
        atomic_fetch_add(&store->opened, 1);
    }
    pthread_mutex_unlock(&store->lock);
    /* No zero ends it. */
    if (is_there && strcmp(name, "endless") == 0)
        memset(info->etag, 'x', sizeof info->etag);
    return is_there ? FCAST_OK : FCAST_NOT_FOUND;
}

static void store_close(void *context, void *object)
{
    struct store *store = context;
    pthread_mutex_lock(&store->lock);
    drop(object);
    atomic_fetch_add(&store->closed, 1);
    pthread_mutex_unlock(&store->lock);
}

/* A piece that is answered by another thread. */
struct late {
    struct store *store;
    const unsigned char *from;
    void *data;
    size_t len;
    fcast_object_piece piece;
};

static void *answer_late(void *given)
{
    struct late *late = given;
    usleep(1000);
    memcpy(late->data, late->from, late->len);
    OK(fcast_object_piece_done(late->piece, FCAST_OK, late->len));
    IS(fcast_object_piece_done(late->piece, FCAST_OK, late->len), FCAST_STALE);
    atomic_fetch_sub(&late->store->pieces, 1);
    free(late);
    return NULL;
}

static fcast_status store_read(void *context, void *object, uint64_t at, void *data, size_t len,
                               fcast_object_piece piece)
{
    struct store *store = context;
    struct object *it = object;
    CHECK(at + len <= it->info.size && len <= PIECE);
    if (strcmp(it->name, "late") == 0) {
        struct late *late = malloc(sizeof *late);
        *late = (struct late){store, it->bytes + at, data, len, piece};
        atomic_fetch_add(&store->pieces, 1);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, answer_late, late) == 0);
        CHECK(pthread_detach(thread) == 0);
        return FCAST_OK;
    }
    if (strcmp(it->name, "long") == 0) {
        IS(fcast_object_piece_done(piece, FCAST_OK, len + 1), FCAST_INVALID);
        IS(fcast_object_piece_done(piece, FCAST_OK, len), FCAST_STALE);
        return FCAST_OK;
    }
    if (strcmp(it->name, "huge") == 0) {
        IS(fcast_object_piece_done(piece, FCAST_OK, SIZE_MAX), FCAST_INVALID);
        return FCAST_OK;
    }
    if (strcmp(it->name, "short") == 0) {
        OK(fcast_object_piece_done(piece, FCAST_OK, len - 1));
        return FCAST_OK;
    }
    if (strcmp(it->name, "refuses") == 0)
        return FCAST_TIMED_OUT;
    memcpy(data, it->bytes + at, len);
    /* What ends a service would wait for this call. */
    IS(fcast_object_service_address(store->service, NULL, 0, NULL), FCAST_BUSY);
    IS(fcast_object_service_close(store->service, 0), FCAST_BUSY);
    IS(fcast_object_service_release(store->service), FCAST_BUSY);
    OK(fcast_object_piece_done(piece, FCAST_OK, len));
    return FCAST_OK;
}

/* An object that is being put, and on which condition. */
struct upload {
    struct object *object;
    uint32_t condition;
    char etag[FCAST_OBJECT_ETAG_LEN];
};

static fcast_status store_begin(void *context, const char *name, uint64_t len, uint32_t condition,
                                const char *etag, void **upload)
{
    struct store *store = context;
    if (len > SIZE)
        return FCAST_NO_RESOURCES;
    CHECK((etag != NULL) == (condition == FCAST_PUT_MATCHES));
    struct upload *it = calloc(1, sizeof *it);
    it->object = calloc(1, sizeof *it->object);
    it->object->users = 1;
    it->object->bytes = malloc(len + 1);
    it->object->info.size = len;
    snprintf(it->object->name, sizeof it->object->name, "%s", name);
    it->condition = condition;
    snprintf(it->etag, sizeof it->etag, "%s", etag != NULL ? etag : "");
    atomic_fetch_add(&store->begun, 1);
    *upload = it;
    return FCAST_OK;
}

static fcast_status store_write(void *context, void *upload, uint64_t at, const void *data,
                                size_t len, fcast_object_piece piece)
{
    (void)context;
    struct upload *it = upload;
    CHECK(at + len <= it->object->info.size);
    if (strcmp(it->object->name, "unwritable") == 0)
        return FCAST_NO_RESOURCES;
    memcpy(it->object->bytes + at, data, len);
    OK(fcast_object_piece_done(piece, FCAST_OK, len));
    return FCAST_OK;
}

static fcast_status store_commit(void *context, void *upload, uint64_t crc64,
                                 fcast_object_info *info)
{
    struct store *store = context;
    struct upload *it = upload;
    struct object *object = it->object;
    CHECK(info->size == object->info.size && info->checksum == crc64 && strlen(info->etag) > 0);
    object->info = *info;
    pthread_mutex_lock(&store->lock);
    bool is_there;
    size_t at = place_of(store, object->name, &is_there);
    fcast_status status = FCAST_OK;
    if ((it->condition == FCAST_PUT_ABSENT && is_there) ||
        (it->condition == FCAST_PUT_MATCHES &&
         (!is_there || strcmp(store->objects[at]->info.etag, it->etag) != 0))) {
        status = FCAST_REFUSED;
        drop(object);
    } else if (is_there) {
        drop(store->objects[at]);
        store->objects[at] = object;
    } else {
        CHECK(store->count < OBJECTS);
        memmove(&store->objects[at + 1], &store->objects[at],
                (store->count - at) * sizeof store->objects[0]);
        store->objects[at] = object;
        store->count++;
    }
    atomic_fetch_add(&store->committed, 1);
    pthread_mutex_unlock(&store->lock);
    free(it);
    return status;
}

static void store_abort(void *context, void *upload)
{
    struct store *store = context;
    struct upload *it = upload;
    pthread_mutex_lock(&store->lock);
    drop(it->object);
    pthread_mutex_unlock(&store->lock);
    free(it);
    atomic_fetch_add(&store->aborted, 1);
}

static fcast_object_list last_list;

static fcast_status store_list(void *context, const char *prefix, const char *start_after,
                               size_t limit, fcast_object_list into)
{
    (void)start_after;
    struct store *store = context;
    if (strcmp(prefix, "disordered") == 0) {
        fcast_object_info info = {.size = 1, .etag = "e"};
        OK(fcast_object_list_add(into, "disordered/b", &info));
        IS(fcast_object_list_add(into, "disordered/b", &info), FCAST_INVALID);
        IS(fcast_object_list_add(into, "disordered/a", &info), FCAST_INVALID);
        IS(fcast_object_list_add(into, "disordered//c", &info), FCAST_INVALID);
        IS(fcast_object_list_add(into, NULL, &info), FCAST_INVALID);
        IS(fcast_object_list_add(into, "disordered/c", NULL), FCAST_INVALID);
        info.etag[0] = 0;
        IS(fcast_object_list_add(into, "disordered/c", &info), FCAST_INVALID);
        return FCAST_SYSTEM;
    }
    pthread_mutex_lock(&store->lock);
    last_list = into;
    fcast_status status = FCAST_OK;
    size_t taken = 0;
    for (size_t i = 0; i < store->count && status == FCAST_OK; i++, taken++)
        status = fcast_object_list_add(into, store->objects[i]->name, &store->objects[i]->info);
    CHECK(status == FCAST_OK || (status == FCAST_NO_RESOURCES && taken > limit));
    pthread_mutex_unlock(&store->lock);
    return status;
}

static fcast_status store_remove(void *context, const char *name, const char *etag)
{
    struct store *store = context;
    pthread_mutex_lock(&store->lock);
    bool is_there;
    size_t at = place_of(store, name, &is_there);
    fcast_status status = is_there ? FCAST_OK : FCAST_NOT_FOUND;
    if (is_there && etag != NULL && strcmp(store->objects[at]->info.etag, etag) != 0)
        status = FCAST_REFUSED;
    if (status == FCAST_OK) {
        drop(store->objects[at]);
        store->count--;
        memmove(&store->objects[at], &store->objects[at + 1],
                (store->count - at) * sizeof store->objects[0]);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

static void store_release(void *context)
{
    struct store *store = context;
    atomic_fetch_add(&store->released, 1);
}

static fcast_object_store_calls calls_of(struct store *store)
{
    return (fcast_object_store_calls){
        .size = sizeof(fcast_object_store_calls),
        .context = store,
        .release = store_release,
        .open = store_open,
        .read = store_read,
        .close = store_close,
        .begin = store_begin,
        .write = store_write,
        .commit = store_commit,
        .abort = store_abort,
        .list = store_list,
        .remove = store_remove,
    };
}

/* What the tests ask with. */
struct asker {
    fcast_fabric fabric;
    fcast_object_client client;
    fcast_object_memory memory;
    unsigned char *data;
    fcast_object_remote remote;
};

static void serve(struct asker *it, struct store *store, const fcast_object_store_calls *calls,
                  uint32_t read_only)
{
    fcast_object_service_settings settings = {.size = sizeof settings, .piece_bytes = PIECE};
    settings.read_only = read_only;
    OK(fcast_object_service_start_store(calls, it->fabric, any_port(), it->fabric, &settings,
                                        &store->service));
    char address[256];
    OK(fcast_object_service_address(store->service, address, sizeof address, NULL));
    OK(fcast_object_remote_connect(it->client, it->fabric, address, NULL, &it->remote));
}

/* Everything that was begun is over when the service is. */
static void end(struct asker *it, struct store *store)
{
    OK(fcast_object_remote_release(it->remote));
    OK(fcast_object_service_close(store->service, 10000));
    while (atomic_load(&store->pieces) > 0)
        usleep(1000);
    CHECK(store->released == 1);
    CHECK(store->opened == store->closed);
    CHECK(store->begun == store->committed + store->aborted);
}

static fcast_status put(struct asker *it, const char *name, uint64_t len, uint32_t condition,
                        const char *etag, fcast_object_info *info)
{
    return fcast_object_remote_put(it->remote, name, it->memory, 0, len, condition, etag, 60000,
                                   info);
}

static fcast_status get(struct asker *it, const char *name, fcast_object_info *info)
{
    memset(it->data, 0, SIZE);
    fcast_status status =
        fcast_object_remote_get(it->remote, name, it->memory, 0, SIZE, 0, 60000, info);
    return status;
}

static void by_name(struct asker *it)
{
    fcast_object_info info, stored;
    IS(fcast_object_remote_head(it->remote, "a", 60000, &info), FCAST_NOT_FOUND);
    memcpy(it->data, content, SIZE);
    OK(put(it, "a", SIZE, FCAST_PUT_ABSENT, NULL, &stored));
    CHECK(stored.size == SIZE && stored.is_checked && strlen(stored.etag) > 0);
    OK(put(it, "empty", 0, FCAST_PUT_ANY, NULL, &info));
    OK(put(it, "late", SIZE, FCAST_PUT_ANY, NULL, &info));
    IS(put(it, "a", 10, FCAST_PUT_ABSENT, NULL, &info), FCAST_REFUSED);
    CHECK(strstr(fcast_last_error(), "already") != NULL);
    IS(put(it, "a", 10, FCAST_PUT_MATCHES, "other", &info), FCAST_REFUSED);
    CHECK(strstr(fcast_last_error(), stored.etag) != NULL);
    IS(put(it, "unwritable", 10, FCAST_PUT_ANY, NULL, &info), FCAST_NO_RESOURCES);
    OK(fcast_object_remote_head(it->remote, "a", 60000, &info));
    CHECK(info.size == SIZE && strcmp(info.etag, stored.etag) == 0);
    CHECK(info.checksum == stored.checksum && info.modified_ns > 0);
    const char *names[] = {"a", "late"};
    for (int i = 0; i < 2; i++) {
        OK(get(it, names[i], &info));
        CHECK(info.moved == SIZE && info.is_checked && memcmp(it->data, content, SIZE) == 0);
    }
    OK(get(it, "empty", &info));
    CHECK(info.moved == 0);
    memcpy(it->data, content, SIZE);
    OK(put(it, "a", 10, FCAST_PUT_MATCHES, stored.etag, &info));
    IS(fcast_object_remote_delete(it->remote, "a", stored.etag, 60000), FCAST_REFUSED);
    OK(fcast_object_remote_delete(it->remote, "a", info.etag, 60000));
    IS(fcast_object_remote_delete(it->remote, "a", NULL, 60000), FCAST_NOT_FOUND);

    fcast_object_entry entries[2];
    size_t count;
    bool more;
    OK(fcast_object_remote_list(it->remote, NULL, NULL, 60000, entries, 1, &count, &more));
    CHECK(count == 1 && more && strcmp(entries[0].name, "empty") == 0);
    OK(fcast_object_remote_list(it->remote, NULL, "empty", 60000, entries, 2, &count, &more));
    CHECK(count == 1 && !more && strcmp(entries[0].name, "late") == 0 && entries[0].size == SIZE);
    OK(fcast_object_remote_list(it->remote, "la", NULL, 60000, entries, 2, &count, &more));
    CHECK(count == 1 && !more && strcmp(entries[0].name, "late") == 0);
    /* It is gone with the call. */
    IS(fcast_object_list_add(last_list, "z", &info), FCAST_STALE);
    IS(fcast_object_remote_list(it->remote, "disordered", NULL, 60000, entries, 2, &count, &more),
       FCAST_SYSTEM);
}

/* What a store does wrong is one request that fails; the bytes of the client stay as they were. */
static void wrong(struct asker *it)
{
    const struct {
        const char *name;
        fcast_status status;
    } cases[] = {
        {"long", FCAST_SYSTEM},    {"huge", FCAST_SYSTEM},     {"short", FCAST_DATA},
        {"refuses", FCAST_SYSTEM}, {"endless", FCAST_SYSTEM},  {"fails", FCAST_SYSTEM},
        {"nonsense", FCAST_SYSTEM}, {"missing", FCAST_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fcast_object_info info;
        const char *name = cases[i].name;
        memcpy(it->data, content, SIZE);
        if (i < 5)
            OK(put(it, name, PIECE + 5, FCAST_PUT_ANY, NULL, &info));
        IS(get(it, name, &info), cases[i].status);
        for (size_t at = 0; at < SIZE; at++)
            CHECK(it->data[at] == 0);
        if (i < 5)
            OK(fcast_object_remote_delete(it->remote, name, NULL, 60000));
    }
}

static void nothing_changes(struct asker *it, uint32_t read_only, bool has_begin)
{
    struct store store = {.lock = PTHREAD_MUTEX_INITIALIZER};
    fcast_object_store_calls calls = calls_of(&store);
    if (!has_begin)
        calls.begin = NULL, calls.remove = NULL, calls.list = NULL, calls.close = NULL;
    calls.never_waits = 1;
    serve(it, &store, &calls, read_only);
    fcast_object_info info;
    IS(put(it, "a", 10, FCAST_PUT_ANY, NULL, &info), FCAST_REFUSED);
    IS(put(it, "a", 10, FCAST_PUT_ABSENT, NULL, &info), FCAST_REFUSED);
    IS(fcast_object_remote_delete(it->remote, "a", NULL, 60000), FCAST_REFUSED);
    IS(get(it, "a", &info), FCAST_NOT_FOUND);
    fcast_object_entry entry;
    size_t count;
    bool more;
    IS(fcast_object_remote_list(it->remote, NULL, NULL, 60000, &entry, 1, &count, &more),
       has_begin ? FCAST_OK : FCAST_REFUSED);
    end(it, &store);
}

/* What starts no service gives the store back. */
static void refused(struct asker *it)
{
    struct store store = {.lock = PTHREAD_MUTEX_INITIALIZER};
    fcast_object_service service;
    const char *any = any_port();
    fcast_object_store_calls calls = calls_of(&store);
    fcast_fabric fabric = it->fabric;
    IS(fcast_object_service_start_store(NULL, fabric, any, fabric, NULL, &service), FCAST_INVALID);
    calls.size = 7;
    IS(fcast_object_service_start_store(&calls, fabric, any, fabric, NULL, &service),
       FCAST_INVALID);
    CHECK(store.released == 0);
    calls.size = sizeof calls;
    IS(fcast_object_service_start_store(&calls, fabric, any, fabric, NULL, NULL), FCAST_INVALID);
    IS(fcast_object_service_start_store(&calls, fabric, "?", fabric, NULL, &service),
       FCAST_INVALID);
    calls.commit = NULL;
    IS(fcast_object_service_start_store(&calls, fabric, any, fabric, NULL, &service),
       FCAST_INVALID);
    calls = calls_of(&store), calls.read = NULL;
    IS(fcast_object_service_start_store(&calls, fabric, any, fabric, NULL, &service),
       FCAST_INVALID);
    calls = calls_of(&store), calls.open = NULL;
    IS(fcast_object_service_start_store(&calls, fabric, any, fabric, NULL, &service),
       FCAST_INVALID);
    CHECK(store.released == 5);
    IS(fcast_object_piece_done((fcast_object_piece){0}, FCAST_OK, 0), FCAST_STALE);
}

int main(void)
{
    for (size_t i = 0; i < SIZE; i++)
        content[i] = (unsigned char)(i * 31 + i / 253 + 1);
    struct asker it = {.fabric = open_fabric()};
    OK(fcast_object_client_open(it.fabric, NULL, &it.client));
    fcast_region region;
    OK(fcast_region_allocate(2 * SIZE, 0, -1, &region));
    fcast_pool pool;
    OK(fcast_pool_create(region, SIZE, 0, &pool));
    it.memory = buffer_of(it.client, pool, &it.data);

    for (uint32_t never_waits = 0; never_waits < 2; never_waits++) {
        struct store store = {.lock = PTHREAD_MUTEX_INITIALIZER};
        fcast_object_store_calls calls = calls_of(&store);
        calls.never_waits = never_waits;
        serve(&it, &store, &calls, 0);
        by_name(&it);
        wrong(&it);
        end(&it, &store);
        while (store.count > 0)
            drop(store.objects[--store.count]);
    }
    nothing_changes(&it, 1, true);
    nothing_changes(&it, 0, false);
    refused(&it);

    OK(fcast_object_memory_release(it.memory));
    OK(fcast_object_client_release(it.client));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(region));
    OK(fcast_fabric_release(it.fabric));
    puts("store");
    return 0;
}
