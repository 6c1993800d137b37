/* Objects: by token, with a control path of the program's, and by name from a service. */
#include "objects.h"

#include <poll.h>
#include <unistd.h>

enum { SIZE = 1 << 16 };

static unsigned char content[SIZE];

/* What a server needs. */
struct server {
    fcast_object_server server;
    fcast_object_channel channel;
    fcast_region region;
    unsigned char *memory;
    unsigned calls;
};

static struct server open_server(fcast_fabric fabric)
{
    struct server it = {0};
    OK(fcast_object_server_open(fabric, NULL, &it.server));
    OK(fcast_object_channel_open(it.server, &it.channel));
    OK(fcast_region_allocate(SIZE, 0, -1, &it.region));
    void *base;
    OK(fcast_region_memory(it.region, &base, NULL));
    it.memory = base;
    fcast_domain domain;
    OK(fcast_object_server_domain(it.server, &domain));
    OK(fcast_region_register(it.region, domain));
    OK(fcast_domain_release(domain));
    return it;
}

/* Waits for the outcome of the one transfer under way. */
static fcast_event outcome(struct server *it, uint64_t key)
{
    for (;;) {
        fcast_event event;
        size_t count;
        OK(fcast_object_channel_poll(it->channel, &event, 1, &count));
        if (count == 1 && event.kind != FCAST_EVENT_OBJECT_RETURNED) {
            CHECK(event.key == key);
            return event;
        }
        OK(fcast_object_channel_wait(it->channel, 100));
    }
}

static void tokens(fcast_object_client client, struct server *it)
{
    fcast_region region;
    OK(fcast_region_allocate(SIZE, 0, -1, &region));
    void *base;
    OK(fcast_region_memory(region, &base, NULL));
    fcast_object_memory memory;
    IS(fcast_object_memory_register(client, region, base, SIZE, 4, &memory), FCAST_INVALID);
    IS(fcast_object_memory_register(client, region, base, SIZE + 1, FCAST_OBJECT_GET, &memory),
       FCAST_NOT_FOUND);
    OK(fcast_object_memory_register(client, region, base, SIZE, FCAST_OBJECT_GET, &memory));
    fcast_object_token token;
    IS(fcast_object_token_lend(memory, 0, 10, FCAST_OBJECT_PUT, &token), FCAST_INVALID);
    IS(fcast_object_token_lend(memory, 1, SIZE, FCAST_OBJECT_GET, &token), FCAST_INVALID);
    OK(fcast_object_token_lend(memory, 1000, 2000, FCAST_OBJECT_GET, &token));
    IS(fcast_object_memory_reclaim(memory, 0, NULL), FCAST_BUSY);
    char text[1024];
    size_t len;
    OK(fcast_object_token_text(token, text, sizeof text, &len));
    CHECK(len == strlen(text) + 1);

    memcpy(it->memory, content, SIZE);
    IS(fcast_object_channel_write(it->channel, "nonsense", 0, it->region, it->memory, 1, 1, 1000),
       FCAST_INVALID);
    IS(fcast_object_channel_write(it->channel, text, 1, it->region, it->memory, 2000, 1, 1000),
       FCAST_INVALID);
    OK(fcast_object_channel_write(it->channel, text, 500, it->region, it->memory, 1500, 7, 60000));
    CHECK(outcome(it, 7).kind == FCAST_EVENT_OBJECT_WRITTEN);
    CHECK(memcmp((unsigned char *)base + 1500, content, 1500) == 0);
    OK(fcast_object_token_done(token));
    IS(fcast_object_token_done(token), FCAST_STALE);

    /* One that is revoked reaches nothing. */
    OK(fcast_object_token_lend(memory, 0, 100, FCAST_OBJECT_GET, &token));
    OK(fcast_object_token_text(token, text, sizeof text, &len));
    OK(fcast_object_token_release(token));
    OK(fcast_object_channel_write(it->channel, text, 0, it->region, it->memory, 100, 8, 2000));
    fcast_event event = outcome(it, 8);
    CHECK(event.kind == FCAST_EVENT_OBJECT_FAILED && event.status != FCAST_OK);
    CHECK(event.text != NULL && strlen(event.text) > 0);
    CHECK(memcmp(base, content, 100) != 0);
    /* Over verbs that was the end of a connection to the client: what follows goes by another. */
    OK(fcast_object_memory_reclaim(memory, 60000, NULL));
    IS(fcast_object_token_lend(memory, 0, 10, FCAST_OBJECT_GET, &token), FCAST_INVALID);
    OK(fcast_object_memory_release(memory));
    OK(fcast_region_release(region));
}

/* What a callback of the control path answers: the length, or that it failed, and why. */
static int64_t moved_by(struct server *it, uint64_t key, uint32_t kind, uint64_t len)
{
    fcast_event event = outcome(it, key);
    if (event.kind == kind)
        return (int64_t)len;
    fprintf(stderr, "event %u: %s\n", event.kind, event.text != NULL ? event.text : "");
    return -1;
}

/* The control path: the server is in the same thread. */
static int64_t serve_get(void *context, const char *token, uint64_t offset, uint64_t memory_offset,
                         uint64_t len)
{
    struct server *it = context;
    CHECK(offset == memory_offset + 100);
    it->calls++;
    OK(fcast_object_channel_write(it->channel, token, 0, it->region, it->memory + offset, len, 1,
                                  60000));
    return moved_by(it, 1, FCAST_EVENT_OBJECT_WRITTEN, len);
}

static int64_t serve_put(void *context, const char *token, uint64_t offset, uint64_t memory_offset,
                         uint64_t len)
{
    struct server *it = context;
    CHECK(offset == memory_offset);
    it->calls++;
    OK(fcast_object_channel_read(it->channel, token, 0, it->region, it->memory + offset, len, 2,
                                 60000));
    return moved_by(it, 2, FCAST_EVENT_OBJECT_READ, len);
}

static int64_t refuse(void *context, const char *token, uint64_t offset, uint64_t memory_offset,
                      uint64_t len)
{
    (void)context, (void)token, (void)offset, (void)memory_offset, (void)len;
    return -7;
}

static void control_path(fcast_object_client client, fcast_pool pool, struct server *it)
{
    unsigned char *data;
    fcast_object_memory memory = buffer_of(client, pool, &data);
    memcpy(it->memory, content, SIZE);
    uint64_t moved;
    enum { LEN = SIZE - 100 };
    OK(fcast_object_transfer(client, FCAST_OBJECT_GET, memory, 0, LEN, 100, serve_get, it, &moved));
    CHECK(moved == LEN && it->calls == 4 && memcmp(data, content + 100, LEN) == 0);
    memset(it->memory, 0, SIZE);
    OK(fcast_object_transfer(client, FCAST_OBJECT_PUT, memory, 0, LEN, 0, serve_put, it, &moved));
    CHECK(moved == LEN && memcmp(it->memory, content + 100, LEN) == 0);
    IS(fcast_object_transfer(client, FCAST_OBJECT_PUT, memory, 0, LEN, 0, refuse, it, &moved),
       FCAST_CLOSED);
    CHECK(strstr(fcast_last_error(), "-7") != NULL);
    IS(fcast_object_transfer(client, FCAST_OBJECT_PUT, memory, 0, LEN, 0, NULL, it, &moved),
       FCAST_INVALID);
    fcast_buffer buffer;
    OK(fcast_object_memory_reclaim(memory, 60000, &buffer));
    OK(fcast_buffer_release(buffer));
    OK(fcast_object_memory_release(memory));
}

static void by_name(fcast_fabric fabric, fcast_object_client client, fcast_pool pool)
{
    char dir[] = "/tmp/fabricast-c-object-XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    fcast_object_service service;
    const char *any = any_port();
    IS(fcast_object_service_start("/nowhere", fabric, any, fabric, NULL, &service),
       FCAST_NOT_FOUND);
    fcast_object_service_settings settings = {.size = sizeof settings, .piece_bytes = 1};
    IS(fcast_object_service_start(dir, fabric, any, fabric, &settings, &service), FCAST_INVALID);
    settings.piece_bytes = 1 << 14;
    OK(fcast_object_service_start(dir, fabric, any, fabric, &settings, &service));
    char address[256];
    OK(fcast_object_service_address(service, address, sizeof address, NULL));
    fcast_object_remote remote;
    OK(fcast_object_remote_connect(client, fabric, address, NULL, &remote));
    unsigned char *data;
    fcast_object_memory memory = buffer_of(client, pool, &data);
    memcpy(data, content, SIZE);

    fcast_object_info put, info;
    IS(fcast_object_remote_head(remote, "runs/7", 60000, &info), FCAST_NOT_FOUND);
    OK(fcast_object_remote_put(remote, "runs/7", memory, 0, SIZE, FCAST_PUT_ABSENT, NULL, 60000,
                               &put));
    CHECK(put.size == SIZE && put.moved == SIZE && put.is_checked && strlen(put.etag) > 0);
    IS(fcast_object_remote_put(remote, "runs/7", memory, 0, 10, FCAST_PUT_ABSENT, NULL, 60000,
                               &info),
       FCAST_REFUSED);
    IS(fcast_object_remote_put(remote, "runs/7", memory, 0, 10, FCAST_PUT_MATCHES, NULL, 60000,
                               &info),
       FCAST_INVALID);
    OK(fcast_object_remote_head(remote, "runs/7", 60000, &info));
    CHECK(info.size == SIZE && strcmp(info.etag, put.etag) == 0);
    CHECK(info.modified_ns > 0);
    /* Kept where the file system has attributes of users: tmpfs has them since Linux 6.6. */
    bool is_kept = info.checksum_kind == FCAST_CHECKSUM_CRC64;
    CHECK(is_kept ? info.checksum == put.checksum : info.checksum_kind == FCAST_OFF);
    OK(fcast_object_remote_put(remote, "runs/8", memory, 5, 10, FCAST_PUT_ANY, NULL, 60000, &info));
    memset(data, 0, SIZE);
    OK(fcast_object_remote_get(remote, "runs/7", memory, 0, SIZE, 10, 60000, &info));
    CHECK(info.moved == SIZE - 10 && info.is_checked);
    CHECK(memcmp(data, content + 10, SIZE - 10) == 0);

    fcast_object_entry entry;
    size_t count;
    bool more;
    OK(fcast_object_remote_list(remote, "runs/", NULL, 60000, &entry, 1, &count, &more));
    CHECK(count == 1 && more && strcmp(entry.name, "runs/7") == 0 && entry.size == SIZE);
    CHECK(strcmp(entry.etag, put.etag) == 0);
    OK(fcast_object_remote_list(remote, "runs/", entry.name, 60000, &entry, 1, &count, &more));
    CHECK(count == 1 && !more && strcmp(entry.name, "runs/8") == 0 && entry.size == 10);
    IS(fcast_object_remote_delete(remote, "runs/7", "other", 60000), FCAST_REFUSED);
    OK(fcast_object_remote_delete(remote, "runs/7", put.etag, 60000));
    IS(fcast_object_remote_delete(remote, "runs/7", NULL, 60000), FCAST_NOT_FOUND);
    OK(fcast_object_remote_delete(remote, "runs/8", NULL, 60000));
    char text[65536];
    OK(fcast_process_stats_text(text, sizeof text, NULL));
    CHECK(strstr(text, "client") != NULL);

    OK(fcast_object_memory_release(memory));
    OK(fcast_object_service_close(service, 1000));
    IS(fcast_object_service_release(service), FCAST_STALE);
    fcast_status status = fcast_object_remote_head(remote, "runs/7", 60000, &info);
    CHECK(status == FCAST_CLOSED || status == FCAST_TIMED_OUT);
    OK(fcast_object_remote_release(remote));
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0);
}

/* What a loop of the program's does before it polls a channel again. */
static void sleep_on(struct server *it)
{
    int32_t fds[8], timeout_ms = -2;
    size_t count = 0;
    bool may_sleep;
    OK(fcast_object_channel_fds(it->channel, fds, 8, &count));
    CHECK(count <= 8);
    OK(fcast_object_channel_prepare_wait(it->channel, &may_sleep, &timeout_ms));
    CHECK(timeout_ms >= -1);
    if (!may_sleep)
        return;
    struct pollfd watched[8];
    for (size_t i = 0; i < count; i++)
        watched[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    /* Without descriptors it is looked at all the time. */
    int woken = poll(watched, count, count == 0 ? 1 : timeout_ms < 0 ? 60000 : timeout_ms);
    CHECK(woken > 0 || count == 0 || timeout_ms >= 0);
}

/* Takes one event of a channel that a loop watches. */
static fcast_event take_one(struct server *it, fcast_loop loop, uint64_t token)
{
    for (;;) {
        fcast_event event;
        size_t count;
        OK(fcast_object_channel_poll(it->channel, &event, 1, &count));
        if (count == 1)
            return event;
        if (loop.id == 0) {
            sleep_on(it);
            continue;
        }
        fcast_loop_event told;
        OK(fcast_loop_run_once(loop, 60000, &told, 1, &count));
        CHECK(count == 1 && told.kind == FCAST_LOOP_CHANNEL);
        CHECK(told.token == token && told.key == 71);
    }
}

/* Two transfers at once, of which each poll takes one event: the other is not forgotten. */
static void in_a_loop(fcast_object_client client, fcast_pool pool, struct server *it,
                      fcast_loop loop, uint64_t token)
{
    unsigned char *data;
    fcast_object_memory memory = buffer_of(client, pool, &data);
    memcpy(it->memory, content, SIZE);
    memset(data, 0, SIZE);
    fcast_object_token lent;
    OK(fcast_object_token_lend(memory, 0, SIZE, FCAST_OBJECT_GET, &lent));
    char text[1024];
    OK(fcast_object_token_text(lent, text, sizeof text, NULL));
    for (uint64_t round = 0; round < 20; round++) {
        for (uint64_t key = 0; key < 2; key++)
            OK(fcast_object_channel_write(it->channel, text, key * SIZE / 2, it->region,
                                          it->memory + key * SIZE / 2, SIZE / 2, key, 60000));
        uint64_t keys = 0;
        for (int i = 0; i < 2; i++) {
            fcast_event event = take_one(it, loop, token);
            CHECK(event.kind == FCAST_EVENT_OBJECT_WRITTEN);
            keys |= UINT64_C(1) << event.key;
        }
        CHECK(keys == 3);
    }
    CHECK(memcmp(data, content, SIZE) == 0);
    OK(fcast_object_token_done(lent));
    OK(fcast_object_memory_reclaim(memory, 60000, NULL));
    OK(fcast_object_memory_release(memory));
}

static void loops(fcast_object_client client, fcast_pool pool, struct server *it)
{
    in_a_loop(client, pool, it, (fcast_loop){0}, 0);
    fcast_loop loop;
    uint64_t token;
    OK(fcast_loop_create(NULL, &loop));
    IS(fcast_loop_add_channel(loop, (fcast_object_channel){0}, 71, &token), FCAST_STALE);
    IS(fcast_loop_add_channel(loop, it->channel, 71, NULL), FCAST_INVALID);
    OK(fcast_loop_add_channel(loop, it->channel, 71, &token));
    in_a_loop(client, pool, it, loop, token);
    OK(fcast_loop_remove(loop, token));
    IS(fcast_loop_remove(loop, token), FCAST_NOT_FOUND);
    fcast_loop_event told;
    size_t count;
    OK(fcast_loop_run_once(loop, 1, &told, 1, &count));
    CHECK(count == 0);
    /* One that is released is forgotten by itself. */
    fcast_object_channel other;
    OK(fcast_object_channel_open(it->server, &other));
    OK(fcast_loop_add_channel(loop, other, 71, &token));
    OK(fcast_object_channel_close(other, 0));
    int32_t timeout_ms;
    bool may_sleep;
    IS(fcast_object_channel_fds(other, NULL, 0, &count), FCAST_CLOSED);
    IS(fcast_object_channel_prepare_wait(other, &may_sleep, &timeout_ms), FCAST_CLOSED);
    IS(fcast_loop_add_channel(loop, other, 71, &token), FCAST_CLOSED);
    OK(fcast_object_channel_release(other));
    OK(fcast_loop_run_once(loop, 1, &told, 1, &count));
    OK(fcast_loop_release(loop));
}

int main(void)
{
    for (size_t i = 0; i < SIZE; i++)
        content[i] = (unsigned char)(i * 31 + i / 253 + 1);
    fcast_fabric fabric = open_fabric();
    fcast_object_client client;
    fcast_object_client_settings settings = {.size = sizeof settings, .callback_bytes = SIZE / 4};
    settings.name = "client of C";
    OK(fcast_object_client_open(fabric, &settings, &client));
    fcast_region region;
    OK(fcast_region_allocate(2 * SIZE, 0, -1, &region));
    fcast_pool pool;
    OK(fcast_pool_create(region, SIZE, 0, &pool));
    struct server server = open_server(fabric);

    tokens(client, &server);
    control_path(client, pool, &server);
    loops(client, pool, &server);
    by_name(fabric, client, pool);

    OK(fcast_object_channel_close(server.channel, 1000));
    IS(fcast_object_channel_close(server.channel, 1000), FCAST_CLOSED);
    OK(fcast_object_channel_release(server.channel));
    OK(fcast_object_server_release(server.server));
    OK(fcast_region_release(server.region));
    OK(fcast_object_client_release(client));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(region));
    OK(fcast_fabric_release(fabric));
    puts("objects");
    return 0;
}
