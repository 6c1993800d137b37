// The same library from C++: with the C++ header where it is installed.
#if __has_include(<fabricast.hpp>)
#include <fabricast.hpp>
#else
#include <fabricast.h>
#endif
#include <cstdio>
#include <cstring>

int main()
{
    const bool same = fcast_version() == FCAST_VERSION;
    const bool named = std::strcmp(fcast_status_name(FCAST_AGAIN), "FCAST_AGAIN") == 0;
    if (!same || !named)
        return 1;
    std::puts("hello");
    return 0;
}
