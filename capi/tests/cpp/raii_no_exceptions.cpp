// The headers without exceptions: results are looked at, and a value that is not there ends the
// program with words.
#define FABRICAST_NO_EXCEPTIONS
#include "check.hpp"

#include <fabricast_object_store.hpp>
#include <fabricast_stats.hpp>
#include <fabricast_stream_sink.hpp>

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

/// What a callback of a client fails with comes out, and what calls of C refuse, too.
static void callbacks()
{
    auto loop = fabricast::event_loop::create();
    CHECK(loop);
    int ticks = 0;
    auto watch = loop->on_timer(std::chrono::milliseconds(0), [&] {
        ticks++;
        CHECK(loop->stop());
    });
    CHECK(watch && loop->run() && ticks == 1);
    const fabricast::object_client none;
    const auto never = [](const fabricast::object_part &part) { return part.len; };
    CHECK(none.get({}, 0, never).code() == FCAST_STALE);
    const fabricast::object_callback failing = [](const auto &) {
        return fabricast::failure{FCAST_REFUSED, "the server says no"};
    };
    fabricast::detail::object_request request(failing);
    CHECK(fabricast::detail::object_request::trampoline(&request, "", 0, 0, 1) < 0);
    CHECK(request.outcome(FCAST_CLOSED, 0).error().words == "the server says no");
}

int main()
{
    callbacks();
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
