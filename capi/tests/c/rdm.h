/* What the tests of connectionless endpoints share: a domain for them. */
#ifndef RDM_H
#define RDM_H

#include "check.h"

/* The provider net of libfabric 1.17 keeps some of its endpoints' descriptions; that of 2.x does not. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfabric.so\n";
}

/* A domain of reliable datagrams: libfabric 1.x calls the provider net, 2.x tcp. */
static int open_rdm(fcast_domain *domain)
{
    fcast_fabric fabric = find_fabric(FCAST_KIND_RDM, "net,tcp");
    if (fabric.id == 0)
        return 0;
    OK(fcast_domain_open(fabric, domain));
    OK(fcast_fabric_release(fabric));
    return 1;
}

#endif
