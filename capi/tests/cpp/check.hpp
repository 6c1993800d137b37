// What the tests in C++ share: a check that says where it failed, and a domain.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <fabricast.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s is not so; last error: %s\n", __FILE__, __LINE__,      \
                         #condition, fcast_last_error());                                          \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

/// FABRICAST_TEST_PROVIDER and FABRICAST_TEST_NODE, as in ../c/check.h: here the first of the
/// providers, which is the one with connections.
inline const char *test_provider()
{
    static const std::string provider = [] {
        const char *asked = std::getenv("FABRICAST_TEST_PROVIDER");
        const std::string all = asked ? asked : "tcp";
        return all.substr(0, all.find(','));
    }();
    return provider.c_str();
}
inline const char *test_node()
{
    const char *node = std::getenv("FABRICAST_TEST_NODE");
    return node ? node : "127.0.0.1";
}
/// Where a listener listens: on a port that the system chooses.
inline const char *any_port()
{
    static const std::string address = std::string(test_node()) + ":0";
    return address.c_str();
}

/// A domain on this machine.
inline fabricast::domain open_domain()
{
    fabricast::fabric_settings settings;
    settings.provider = test_provider();
    settings.node = test_node();
    return fabricast::fabric::open(settings).value().open_domain().value();
}

#endif
