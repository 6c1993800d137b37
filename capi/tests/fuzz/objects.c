/* Objects: clients with memory and tokens, servers with channels, services of a folder. */
#include "fuzz.h"

static char services[4][256];
static atomic_uint next_service;
static _Thread_local char last_token[512];

static const char *any_name(void)
{
    static const char *const names[] = {"file0", "file1", "file2", "o1",  "o2",
                                        "",      "../x",  "\xff",  "a//b"};
    return once_in(40) ? NULL : names[below(once_in(6) ? COUNT(names) : 5)];
}

static uint32_t soon(void) { return (uint32_t)below(20); }
/* Bytes of memory that mostly has as many. */
static uint64_t some_len(void) { return below(once_in(3) ? 5000 : 60); }

static fcast_status open_client(void)
{
    unsigned char place[1024];
    fcast_object_client_settings settings = {.size = sizeof settings};
    settings.tokens = (uint32_t)below(40);
    settings.quarantine_ms = once_in(4) ? (uint32_t)below(100) : 0;
    settings.no_progress_thread = once_in(4);
    fcast_object_client client = {UNTOUCHED};
    fcast_status status = checked(fcast_object_client_open(
        (fcast_fabric){pick(FABRIC)},
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        once_in(50) ? NULL : &client));
    if (status == FCAST_OK)
        keep(CLIENT, client.id);
    else
        MUST(client.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status progress(void)
{
    return checked(fcast_object_client_progress((fcast_object_client){pick(CLIENT)}));
}

static fcast_status register_memory(void)
{
    fcast_region region;
    size_t len;
    void *data = any_place(&region, &len);
    fcast_object_memory memory = {UNTOUCHED};
    uint64_t buffer = pick(BUFFER);
    fcast_object_client client = {pick(CLIENT)};
    uint32_t operations = once_in(9) ? (uint32_t)below(8) : FCAST_OBJECT_GET | FCAST_OBJECT_PUT;
    fcast_status status;
    if (once_in(3)) {
        status = fcast_object_memory_register_buffer(client, (fcast_buffer){buffer}, operations,
                                                     &memory);
        if (status == FCAST_OK)
            gone(BUFFER, buffer);
    } else {
        status = fcast_object_memory_register(client, region, data, len, operations, &memory);
    }
    if (checked(status) == FCAST_OK)
        keep(MEMORY, memory.id);
    return status;
}

static fcast_status reclaim(void)
{
    fcast_buffer buffer = {0};
    fcast_status status = checked(fcast_object_memory_reclaim((fcast_object_memory){pick(MEMORY)},
                                                              soon(), once_in(3) ? NULL : &buffer));
    if (status == FCAST_OK && buffer.id != 0)
        keep(BUFFER, buffer.id);
    return status;
}

static fcast_status is_connected(void)
{
    bool connected;
    return checked(fcast_object_client_is_connected((fcast_object_client){pick(CLIENT)},
                                                    once_in(20) ? NULL : &connected));
}

static fcast_status max_callback(void)
{
    uint64_t bytes;
    return checked(fcast_object_memory_max_callback((fcast_object_memory){pick(MEMORY)},
                                                    once_in(20) ? NULL : &bytes));
}

static fcast_status memory_kind(void)
{
    uint32_t kind = 99;
    const void *address = once_in(2) ? &kind : (const void *)(uintptr_t)any_number();
    fcast_status status = checked(fcast_memory_kind(address, once_in(20) ? NULL : &kind));
    MUST(status != FCAST_OK || kind <= FCAST_MEMORY_PINNED, "no kind of memory");
    return status;
}

static fcast_status take_text(void *context, const char *text, size_t len)
{
    MUST(context == NULL && (len == 0 || text[len - 1] == '\n'), "no lines of text");
    return once_in(9) ? FCAST_SYSTEM : FCAST_OK;
}

static fcast_status start_telemetry(void)
{
    fcast_object_telemetry_settings settings = {.size = sizeof settings};
    unsigned char place[1024];
    settings.groups = (uint32_t)below(64);
    settings.prometheus = once_in(2);
    settings.every_ms = (uint32_t)below(30);
    fcast_object_telemetry telemetry = {UNTOUCHED};
    fcast_status status = checked(fcast_object_telemetry_start(
        once_in(20) ? NULL : take_text, NULL,
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        once_in(50) ? NULL : &telemetry));
    if (status == FCAST_OK)
        keep(TELEMETRY, telemetry.id);
    else
        MUST(telemetry.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status telemetry_groups(void)
{
    return checked(fcast_object_telemetry_set_groups((fcast_object_telemetry){pick(TELEMETRY)},
                                                     (uint32_t)below(64)));
}

static fcast_status telemetry_finish(void)
{
    uint64_t id = pick(TELEMETRY);
    fcast_status status = checked(fcast_object_telemetry_finish((fcast_object_telemetry){id}));
    /* Used up also where the function had failed. */
    if (status == FCAST_OK || status == FCAST_SYSTEM)
        gone(TELEMETRY, id);
    return status;
}

static fcast_status lend(void)
{
    fcast_object_token token = {UNTOUCHED};
    fcast_status status = checked(fcast_object_token_lend(
        (fcast_object_memory){pick(MEMORY)}, below(5000), once_in(20) ? any_number() : below(5000),
        (uint32_t)below(once_in(9) ? 5 : 3), &token));
    if (status == FCAST_OK)
        keep(TOKEN, token.id);
    return status;
}

static fcast_status token_text(void)
{
    size_t len = 0;
    char text[512] = "";
    fcast_status status = checked(
        fcast_object_token_text((fcast_object_token){pick(TOKEN)}, text, sizeof text, &len));
    if (status == FCAST_OK && len <= sizeof text)
        memcpy(last_token, text, sizeof text);
    return status;
}

static fcast_status token_done(void)
{
    uint64_t id = pick(TOKEN);
    return used_up(TOKEN, id, fcast_object_token_done((fcast_object_token){id}));
}

void keep_service(fcast_object_service service)
{
    char text[256] = "";
    if (fcast_object_service_address(service, text, sizeof text, NULL) == FCAST_OK)
        memcpy(services[atomic_fetch_add(&next_service, 1) % COUNT(services)], text, sizeof text);
    keep(SERVICE, service.id);
}

static fcast_status start_service(void)
{
    const char *local = strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0";
    fcast_object_service_settings settings = {.size = sizeof settings,
                                              .workers = 1 + (uint32_t)below(3)};
    settings.read_only = once_in(4);
    unsigned char place[1024];
    fcast_object_service service = {UNTOUCHED};
    fcast_fabric fabric = {pick(FABRIC)};
    fcast_status status = checked(fcast_object_service_start(
        once_in(20) ? "/nowhere/at/all" : folder(), fabric, local,
        once_in(2) ? fabric : (fcast_fabric){pick(FABRIC)},
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        &service));
    if (status != FCAST_OK)
        return status;
    keep_service(service);
    return status;
}

static fcast_status service_address(void)
{
    char text[64];
    return checked(fcast_object_service_address((fcast_object_service){pick(SERVICE)}, text,
                                                sizeof text, NULL));
}

static fcast_status close_service(void)
{
    uint64_t id = pick(SERVICE);
    return used_up(SERVICE, id, fcast_object_service_close((fcast_object_service){id}, soon()));
}

static fcast_status connect_remote(void)
{
    char text[256];
    snprintf(text, sizeof text, "%.250s", services[below(COUNT(services))]);
    fcast_object_remote_settings settings = {.size = sizeof settings, .connect_timeout_ms = 500};
    settings.checksum = once_in(3) ? (uint32_t)below(4) : 0;
    fcast_object_remote remote = {UNTOUCHED};
    fcast_status status = checked(fcast_object_remote_connect((fcast_object_client){pick(CLIENT)},
                                                              (fcast_fabric){pick(FABRIC)}, text,
                                                              &settings, &remote));
    if (status == FCAST_OK)
        keep(REMOTE, remote.id);
    return status;
}

static fcast_object_remote any_remote(void) { return (fcast_object_remote){pick(REMOTE)}; }
static fcast_status reconnect(void) { return checked(fcast_object_remote_reconnect(any_remote())); }

static fcast_status head(void)
{
    fcast_object_info info;
    return checked(
        fcast_object_remote_head(any_remote(), any_name(), soon(), once_in(20) ? NULL : &info));
}

static fcast_status get(void)
{
    fcast_object_info info;
    return checked(fcast_object_remote_get(
        any_remote(), any_name(), (fcast_object_memory){pick(MEMORY)}, some_len(), some_len(),
        some_len(), 5 * soon(), once_in(20) ? NULL : &info));
}

static fcast_status put(void)
{
    fcast_object_info info;
    return checked(fcast_object_remote_put(
        any_remote(), any_name(), (fcast_object_memory){pick(MEMORY)}, some_len(), some_len(),
        (uint32_t)below(4), once_in(2) ? NULL : "etag", 5 * soon(), once_in(20) ? NULL : &info));
}

static fcast_status delete_one(void)
{
    return checked(
        fcast_object_remote_delete(any_remote(), any_name(), once_in(2) ? NULL : "etag", soon()));
}

static fcast_status list(void)
{
    fcast_object_entry entries[4];
    size_t count = 0;
    bool more = false;
    return checked(fcast_object_remote_list(any_remote(), once_in(2) ? NULL : any_name(),
                                            once_in(2) ? NULL : any_name(), soon(), entries,
                                            below(5), once_in(20) ? NULL : &count, &more));
}

static fcast_status open_server(void)
{
    unsigned char place[1024];
    fcast_object_server_settings settings = {.size = sizeof settings, .depth = (uint32_t)below(40)};
    fcast_object_server server = {UNTOUCHED};
    fcast_status status = checked(fcast_object_server_open(
        (fcast_fabric){pick(FABRIC)},
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        &server));
    if (status == FCAST_OK)
        keep(SERVER, server.id);
    return status;
}

static fcast_status server_domain(void)
{
    fcast_domain domain = {UNTOUCHED};
    fcast_status status = checked(fcast_object_server_domain((fcast_object_server){pick(SERVER)},
                                                             once_in(20) ? NULL : &domain));
    if (status == FCAST_OK)
        keep(DOMAIN, domain.id);
    return status;
}

static fcast_status open_channel(void)
{
    fcast_object_channel channel = {UNTOUCHED};
    fcast_status status =
        checked(fcast_object_channel_open((fcast_object_server){pick(SERVER)}, &channel));
    if (status == FCAST_OK)
        keep(CHANNEL, channel.id);
    return status;
}

static fcast_object_channel any_channel(void) { return (fcast_object_channel){pick(CHANNEL)}; }

static fcast_status channel_move(void)
{
    fcast_region region;
    size_t len;
    void *data = any_place(&region, &len);
    const char *token = once_in(20) ? once_in(2) ? NULL : "\xff" : last_token;
    if (once_in(2))
        return checked(fcast_object_channel_read(any_channel(), token, below(100), region, data,
                                                 len % 3000, 1, soon()));
    return checked(fcast_object_channel_write(any_channel(), token, below(100), region, data,
                                              len % 3000, 2, soon()));
}

static fcast_status channel_payload(void)
{
    uint64_t payload = pick(PAYLOAD);
    fcast_status status = checked(fcast_object_channel_write_payload(
        any_channel(), last_token, below(100), (fcast_payload){payload}, 3, soon()));
    if (status == FCAST_OK)
        gone(PAYLOAD, payload);
    return status;
}

static fcast_status channel_poll(void)
{
    fcast_event events[4];
    size_t count = SIZE_MAX, capacity = below(5);
    fcast_status status =
        checked(fcast_object_channel_poll(any_channel(), events, capacity, &count));
    MUST(status != FCAST_OK || count <= capacity, "%zu events in %zu places", count, capacity);
    return status;
}

static fcast_status channel_wait(void)
{
    return checked(fcast_object_channel_wait(any_channel(), (uint32_t)below(3)));
}
static fcast_status channel_fds(void)
{
    int32_t fds[4];
    size_t count = 0;
    return checked(
        fcast_object_channel_fds(any_channel(), fds, below(5), once_in(20) ? NULL : &count));
}
static fcast_status channel_prepare(void)
{
    bool may_sleep;
    int32_t timeout_ms;
    return checked(fcast_object_channel_prepare_wait(any_channel(), once_in(20) ? NULL : &may_sleep,
                                                     once_in(20) ? NULL : &timeout_ms));
}
static fcast_status channel_close(void)
{
    return checked(fcast_object_channel_close(any_channel(), soon()));
}

/* Serves nothing, or says it did; may call back. */
static int64_t move_part(void *context, const char *token, uint64_t offset, uint64_t memory_offset,
                         uint64_t len)
{
    (void)context, (void)offset, (void)memory_offset;
    read_all(token, strlen(token));
    uint64_t memory = once_in(20) ? pick(MEMORY) : 0;
    if (fcast_object_memory_release((fcast_object_memory){memory}) == FCAST_OK)
        gone(MEMORY, memory);
    return once_in(4) ? -1 : (int64_t)(once_in(2) ? len : below(len + 2));
}

static fcast_status transfer(void)
{
    uint64_t moved = 0;
    return checked(fcast_object_transfer((fcast_object_client){pick(CLIENT)}, (uint32_t)below(4),
                                         (fcast_object_memory){pick(MEMORY)}, below(100),
                                         below(5000), below(5000), once_in(20) ? NULL : move_part,
                                         NULL, once_in(9) ? NULL : &moved));
}

RELEASE(CLIENT, object_client, fcast_object_client_release)
RELEASE(MEMORY, object_memory, fcast_object_memory_release)
RELEASE(TOKEN, object_token, fcast_object_token_release)
RELEASE(TELEMETRY, object_telemetry, fcast_object_telemetry_release)
RELEASE(REMOTE, object_remote, fcast_object_remote_release)
RELEASE(SERVER, object_server, fcast_object_server_release)
RELEASE(CHANNEL, object_channel, fcast_object_channel_release)
RELEASE(SERVICE, object_service, fcast_object_service_release)

__attribute__((constructor)) static void add_the_kinds(void)
{
    add_kind(CLIENT, 1, 2, "client", open_client, end_object_client);
    add_kind(MEMORY, 2, 6, "memory", register_memory, end_object_memory);
    add_kind(TOKEN, 0, 8, "token", NULL, end_object_token);
    add_kind(TELEMETRY, 0, 2, "telemetry", start_telemetry, end_object_telemetry);
    add_kind(REMOTE, 1, 3, "remote", connect_remote, end_object_remote);
    add_kind(SERVER, 1, 2, "server", open_server, end_object_server);
    add_kind(CHANNEL, 1, 3, "channel", open_channel, end_object_channel);
    add_kind(SERVICE, 1, 2, "service", start_service, end_object_service);
}

static const struct call table[] = {
    {"fcast_object_client_open", 1, open_client},
    {"fcast_object_client_progress", 3, progress},
    {"fcast_object_client_is_connected", 2, is_connected},
    {"fcast_object_client_release", 1, release_object_client},
    {"fcast_object_memory_register", 4, register_memory},
    {"fcast_object_memory_register_buffer", 3, register_memory},
    {"fcast_object_memory_max_callback", 2, max_callback},
    {"fcast_memory_kind", 2, memory_kind},
    {"fcast_object_telemetry_start", 1, start_telemetry},
    {"fcast_object_telemetry_set_groups", 1, telemetry_groups},
    {"fcast_object_telemetry_finish", 1, telemetry_finish},
    {"fcast_object_telemetry_release", 1, release_object_telemetry},
    {"fcast_object_memory_reclaim", 3, reclaim},
    {"fcast_object_memory_release", 3, release_object_memory},
    {"fcast_object_token_lend", 8, lend},
    {"fcast_object_token_text", 6, token_text},
    {"fcast_object_token_done", 3, token_done},
    {"fcast_object_token_release", 4, release_object_token},
    {"fcast_object_service_start", 1, start_service},
    {"fcast_object_service_address", 1, service_address},
    {"fcast_object_service_close", 1, close_service},
    {"fcast_object_service_release", 1, release_object_service},
    {"fcast_object_remote_connect", 1, connect_remote},
    {"fcast_object_remote_reconnect", 1, reconnect},
    {"fcast_object_remote_head", 3, head},
    {"fcast_object_remote_get", 4, get},
    {"fcast_object_remote_put", 4, put},
    {"fcast_object_remote_delete", 2, delete_one},
    {"fcast_object_remote_list", 2, list},
    {"fcast_object_remote_release", 1, release_object_remote},
    {"fcast_object_server_open", 1, open_server},
    {"fcast_object_server_domain", 1, server_domain},
    {"fcast_object_server_release", 1, release_object_server},
    {"fcast_object_channel_open", 1, open_channel},
    {"fcast_object_channel_read", 4, channel_move},
    {"fcast_object_channel_write", 4, channel_move},
    {"fcast_object_channel_write_payload", 3, channel_payload},
    {"fcast_object_channel_poll", 8, channel_poll},
    {"fcast_object_channel_wait", 2, channel_wait},
    {"fcast_object_channel_fds", 1, channel_fds},
    {"fcast_object_channel_prepare_wait", 2, channel_prepare},
    {"fcast_object_channel_close", 1, channel_close},
    {"fcast_object_channel_release", 1, release_object_channel},
    {"fcast_object_transfer", 2, transfer},
};
ADD_CALLS(table)
