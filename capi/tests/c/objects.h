/* What the tests of objects share. */
#ifndef OBJECTS_H
#define OBJECTS_H

#include "check.h"

/* A fabric of endpoints without connections; libfabric up to 1.17 has them of tcp as "net". */
static inline fcast_fabric open_fabric(void)
{
    fcast_fabric fabric = find_fabric(FCAST_KIND_RDM, "tcp,net");
    if (fabric.id == 0) {
        printf("SKIPPED: no provider with endpoints without connections: %s\n", fcast_last_error());
        exit(0);
    }
    return fabric;
}

/* A buffer of a pool, lent for both ways, and where it is. */
static inline fcast_object_memory buffer_of(fcast_object_client client, fcast_pool pool,
                                            unsigned char **data)
{
    fcast_buffer buffer;
    void *at;
    OK(fcast_pool_acquire(pool, 1000, &buffer, &at, NULL));
    *data = at;
    fcast_object_memory memory;
    uint32_t both = FCAST_OBJECT_GET | FCAST_OBJECT_PUT;
    OK(fcast_object_memory_register_buffer(client, buffer, both, &memory));
    IS(fcast_buffer_release(buffer), FCAST_STALE);
    return memory;
}

#endif
