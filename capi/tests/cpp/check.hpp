// What the tests in C++ share: a check that says where it failed, and a domain.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <fabricast.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s is not so; last error: %s\n", __FILE__, __LINE__,      \
                         #condition, fcast_last_error());                                          \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

/// The provider of the tests: tcp, or the one in FABRICAST_PROVIDER.
inline const char *test_provider()
{
    const char *provider = std::getenv("FABRICAST_PROVIDER");
    return provider ? provider : "tcp";
}

/// A domain on this machine.
inline fabricast::domain open_domain()
{
    fabricast::fabric_settings settings;
    settings.provider = test_provider();
    settings.node = "127.0.0.1";
    return fabricast::fabric::open(settings).value().open_domain().value();
}

#endif
