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

/*
 * As the tests in Rust: FABRICAST_TEST_PROVIDER has names with commas between them, of which a test
 * takes the first that has what it needs, and FABRICAST_TEST_NODE an IPv4 address of this machine.
 */
static inline const char *test_node(void)
{
    const char *node = getenv("FABRICAST_TEST_NODE");
    return node != NULL ? node : "127.0.0.1";
}

/* Where a listener listens: on a port that the system chooses. */
static inline const char *any_port(void)
{
    static char address[64];
    snprintf(address, sizeof address, "%s:0", test_node());
    return address;
}

/* A fabric with endpoints of this kind; its id is 0 where no provider has them. */
static inline fcast_fabric find_fabric(uint32_t kind, const char *providers)
{
    const char *asked = getenv("FABRICAST_TEST_PROVIDER");
    char names[256], *rest = NULL;
    snprintf(names, sizeof names, "%s", asked != NULL ? asked : providers);
    fcast_fabric fabric = {0};
    for (char *name = strtok_r(names, ",", &rest); name != NULL && fabric.id == 0;
         name = strtok_r(NULL, ",", &rest)) {
        fcast_fabric_settings settings = {.size = sizeof settings, .kind = kind};
        settings.provider = name;
        settings.node = test_node();
        (void)fcast_fabric_open(&settings, &fabric);
    }
    return fabric;
}

/* A domain with endpoints that connect, on this machine. */
static inline fcast_domain open_domain(void)
{
    fcast_fabric fabric = find_fabric(FCAST_KIND_MSG, "tcp");
    CHECK(fabric.id != 0);
    fcast_domain domain;
    OK(fcast_domain_open(fabric, &domain));
    OK(fcast_fabric_release(fabric));
    return domain;
}

#endif
