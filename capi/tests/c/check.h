/* What the tests in C share: a check that says where it failed. */
#ifndef CHECK_H
#define CHECK_H

#include <fabricast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is not so; last error: %s\n", __FILE__, __LINE__,           \
                    #condition, fcast_last_error());                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define OK(call) IS(call, FCAST_OK)

#define IS(call, expected)                                                                         \
    do {                                                                                           \
        fcast_status status_ = (call);                                                             \
        if (status_ != (expected)) {                                                               \
            fprintf(stderr, "%s:%d: %s is %s and not %s: %s\n", __FILE__, __LINE__, #call,         \
                    fcast_status_name(status_), fcast_status_name(expected), fcast_last_error());  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A domain over tcp on this machine, or of the provider in FABRICAST_PROVIDER. */
static inline fcast_domain open_domain(void)
{
    fcast_fabric_settings settings = {.size = sizeof settings};
    settings.provider = getenv("FABRICAST_PROVIDER");
    if (settings.provider == NULL)
        settings.provider = "tcp";
    settings.node = "127.0.0.1";
    fcast_fabric fabric;
    OK(fcast_fabric_open(&settings, &fabric));
    fcast_domain domain;
    OK(fcast_domain_open(fabric, &domain));
    OK(fcast_fabric_release(fabric));
    return domain;
}

#endif
