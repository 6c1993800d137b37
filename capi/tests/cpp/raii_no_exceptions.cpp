// The header without exceptions: results are looked at, and a value that is not there ends the
// program with words.
#define FABRICAST_NO_EXCEPTIONS
#include "check.hpp"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

int main()
{
    auto region = fabricast::region::external(nullptr, 1);
    CHECK(!region && region.code() == FCAST_INVALID && !region.error().words.empty());
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (!std::freopen("/dev/null", "w", stderr))
            _exit(1);
        (void)std::move(region).value();
        _exit(0);
    }
    int ended = 0;
    CHECK(waitpid(child, &ended, 0) == child);
    CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT);
    const fabricast::domain domain = open_domain();
    CHECK(domain);
    std::printf("raii_no_exceptions: ok\n");
}
