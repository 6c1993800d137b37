/*
 * Calls of the C interface in random order, with handles that are valid, stale and made up.
 *
 * What the program promises is kept (pointers are NULL or good, external memory stays until it is
 * released); all else is random. Each file beside this one adds its calls to the table (ADD_CALLS).
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <fabricast.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of handles; endpoints by what they were opened as. At the end the last ones go first. */
enum {
    FABRIC,
    DOMAIN,
    REGION,
    POOL,
    BUFFER,
    PAYLOAD,
    MESSAGE,
    RECEIVER,
    SENDER,
    DATA_FILE,
    BATCH,
    FILE_TRANSFER,
    STREAM_RECEIVER,
    STREAM_SENDER,
    STREAM_TRANSFER,
    /* Behind the services, which make them. */
    PIECE,
    CLIENT,
    MEMORY,
    TOKEN,
    TELEMETRY,
    REMOTE,
    SERVER,
    CHANNEL,
    SERVICE,
    LOOP,
    WINDOW,
    REMOTE_WINDOW,
    RING,
    RESERVATION,
    STAGING,
    DEVICE_POOL,
    SIGNAL,
    HEADERS,
    KINDS = 40
};

typedef fcast_status release_by_id(uint64_t id);

struct call {
    const char *name;
    /* How often, beside the others. */
    unsigned weight;
    fcast_status (*make)(void);
};

void add_calls(const struct call *calls, size_t count);
/*
 * Names a kind: how many live at once, mostly at least and in any case at most; what makes one, or
 * NULL; what releases one.
 */
void add_kind(int kind, unsigned least, unsigned most, const char *name, fcast_status (*make)(void),
              release_by_id *release);

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define ADD_CALLS(table)                                                                           \
    __attribute__((constructor)) static void add_these(void) { add_calls(table, COUNT(table)); }

/* Dies, with the last calls. */
#define MUST(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            die(__FILE__, __LINE__, #condition, __VA_ARGS__);                                      \
    } while (0)
__attribute__((noreturn, format(printf, 4, 5))) void die(const char *file, int line,
                                                         const char *what, const char *format, ...);

uint64_t any_number(void);
/* 0 to below - 1. */
uint64_t below(uint64_t below);
/* Whether something happens that does so once in so many times. */
static inline bool once_in(uint64_t times) { return below(times) == 0; }
bool alone(void);
const char *provider(void);

/* A handle: mostly a live one, else one that was released, of another kind, zero or made up. */
uint64_t pick(int kind);
/* A live one where there is any, else 0. */
uint64_t pick_live(int kind);
/* Keeps a new one; where there are enough, it is released. */
void keep(int kind, uint64_t id);
/* It is gone. */
void gone(int kind, uint64_t id);

/* An endpoint, whichever it is. */
static inline uint64_t pick_endpoint(void) { return pick(once_in(2) ? SENDER : RECEIVER); }

/* A status that a call may have. */
fcast_status checked(fcast_status status);
/* The same of a call that ends a handle in any case but that it is in use, or not of this kind. */
fcast_status used_up(int kind, uint64_t id, fcast_status status);
/* For results: what a failed call must not touch. */
#define UNTOUCHED UINT64_C(0x5a5a5a5a5a5a5a5a)

/* Texts of addresses that receivers listen at. */
void remember_address(const char *text);
const char *any_address(char *place, size_t size);
/* Keeps a service of objects, and where it is asked. */
void keep_service(fcast_object_service service);
/* The same of a receiver of streams. */
void keep_receiver(fcast_stream_receiver receiver);
/* A struct of settings of `size` bytes whose size field is right or wrong. */
void *sized_settings(const void *settings, size_t size, void *place, size_t room);
/* Memory of the program's with whatever in it. */
extern unsigned char static_memory[1 << 16];
/* Memory that files are read into and written from, at whatever time. */
extern unsigned char file_memory[1 << 16];
/* A folder of this process, which is removed at the end; its name, and that of some file in it. */
const char *folder(void);
const char *any_path(char *place, size_t size);
/* Mostly where `len` bytes of a region are, with the region; else somewhere. */
void *any_place(fcast_region *region, size_t *len);
/* Reads all of it, so that a checker of memory sees it. */
void read_all(const void *data, size_t len);
/* External memory that is freed when it is released; how much of it is not. */
struct external {
    void *base;
    size_t len;
    atomic_int released;
};
struct external *new_external(size_t len);
void external_released(void *external);

/* A kind's release as a call, and as what ends all that are left. */
#define RELEASE(kind, type, function)                                                              \
    static fcast_status end_##type(uint64_t id) { return function((fcast_##type){id}); }           \
    static fcast_status release_##type(void)                                                       \
    {                                                                                              \
        uint64_t id = pick(kind);                                                                  \
        fcast_status status = checked(function((fcast_##type){id}));                               \
        if (status == FCAST_OK)                                                                    \
            gone(kind, id);                                                                        \
        return status;                                                                             \
    }

#endif
