// Event loops in C++: timers, signals, descriptors, endpoints, callbacks that throw and that end
// their own watch, and loops that are run in a callback and stopped by another thread.
#include "check.hpp"

#include <fabricast_loop.hpp>

#include <optional>
#include <stdexcept>
#include <thread>

#include <unistd.h>

namespace fc = fabricast;
using namespace std::chrono_literals;

namespace {
constexpr auto patience = 60000ms;

/// Runs until something is so, and fails where it does not become so.
void run_until(const fc::event_loop &loop, const std::function<bool()> &is_done)
{
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!is_done()) {
        CHECK(std::chrono::steady_clock::now() < end);
        CHECK(loop.run_once(1000).value() == fc::loop_round::done);
    }
}

struct pipe_ends {
    pipe_ends() { CHECK(::pipe(fds) == 0); }
    ~pipe_ends()
    {
        ::close(fds[0]);
        ::close(fds[1]);
    }
    void fill() const { CHECK(::write(fds[1], "x", 1) == 1); }
    void drain() const
    {
        char byte;
        CHECK(::read(fds[0], &byte, 1) == 1);
    }
    int fds[2];
};
} // namespace

static void settings()
{
    fc::loop_settings of;
    of.mode = 3;
    CHECK(fc::event_loop::create(of).code() == FCAST_INVALID);
    fc::event_loop none;
    CHECK(!none && none.run().code() == FCAST_STALE && none.stop() == FCAST_STALE);
    CHECK(none.on_timer(1ms, [] {}).code() == FCAST_STALE);
    CHECK(none.run_once().code() == FCAST_STALE && none.run_for(1ms).code() == FCAST_STALE);
    const fc::event_loop loop = fc::event_loop::create().value();
    CHECK(loop.on_timer(1ms, nullptr).code() == FCAST_INVALID);
    CHECK(loop.on_timer(-1ms, [] {}).code() == FCAST_INVALID);
    CHECK(loop.on_fd(-1, FCAST_LOOP_READ, [](std::uint32_t) {}).code() == FCAST_INVALID);
    CHECK(loop.on_fd(0, FCAST_LOOP_READ, nullptr).code() == FCAST_INVALID);
    CHECK(loop.on_endpoint(fc::endpoint(), [] {}).code() == FCAST_STALE);
}

static void timers(const fc::event_loop &loop)
{
    int once = 0, ticks = 0;
    const auto one = loop.on_timer(0ms, [&] { once++; }).value();
    auto every = loop.on_timer(1ms, 1ms, [&] { ticks++; }).value();
    CHECK(one && one.set_interest(FCAST_LOOP_READ) == FCAST_NOT_FOUND);
    run_until(loop, [&] { return once == 1 && ticks >= 3; });
    every.reset();
    CHECK(!every);
    const int before = ticks;
    {
        const auto ended = loop.on_timer(0ms, [&] { once++; }).value();
    }
    CHECK(loop.run_for(10ms).value() == fc::loop_round::done);
    CHECK(once == 1 && ticks == before);
}

static void descriptors(const fc::event_loop &loop)
{
    const pipe_ends pipe;
    int reads = 0;
    auto watch = loop.on_fd(pipe.fds[0], FCAST_LOOP_READ, [&](std::uint32_t readiness) {
                         CHECK(readiness == FCAST_LOOP_READ);
                         pipe.drain();
                         reads++;
                     }).value();
    CHECK(loop.on_fd(pipe.fds[0], FCAST_LOOP_READ, [](std::uint32_t) {}).code() == FCAST_SYSTEM);
    CHECK(loop.run_once(0).value() == fc::loop_round::done && reads == 0);
    pipe.fill();
    run_until(loop, [&] { return reads == 1; });

    // A watch that is given another one ends its own.
    bool writable = false;
    watch = loop.on_fd(pipe.fds[1], FCAST_LOOP_READ, [&](std::uint32_t readiness) {
                    CHECK(readiness == FCAST_LOOP_WRITE);
                    writable = true;
                }).value();
    CHECK(watch.set_interest(FCAST_LOOP_WRITE));
    pipe.fill();
    run_until(loop, [&] { return writable; });
    CHECK(reads == 1);
}

/// A callback that ends its own watch, and that of others whose events are told already.
static void ends_itself(const fc::event_loop &loop)
{
    const pipe_ends pipes[2];
    std::optional<fc::loop_watch> watches[2];
    int calls = 0;
    for (int at = 0; at < 2; at++) {
        pipes[at].fill();
        // What it holds is gone with it: it is used after that.
        const auto held = std::make_shared<int>(7);
        watches[at] = loop.on_fd(pipes[at].fds[0], FCAST_LOOP_READ,
                                 [&, held](std::uint32_t) {
                                     watches[0].reset();
                                     watches[1].reset();
                                     CHECK(*held == 7);
                                     calls++;
                                 }).value();
    }
    run_until(loop, [&] { return calls > 0; });
    CHECK(loop.run_once(0).value() == fc::loop_round::done && calls == 1);
}

static void signals(const fc::event_loop &loop)
{
    int first = 0, second = 0, woken = 0;
    auto one = loop.on_signal([&] { first++; }).value();
    auto two = loop.on_signal([&] {
                       CHECK(first == second);
                       second++;
                   }).value();
    loop.on_wake([&] { woken++; }).value();
    std::thread([&] {
        CHECK(two.fire() && one.fire() && two.fire() && loop.wake());
    }).join();
    run_until(loop, [&] { return first == 1 && woken == 1; });
    CHECK(second == 1);
    loop.on_wake(nullptr).value();
    CHECK(loop.wake() && loop.run_once(0).value() == fc::loop_round::done && woken == 1);
    const fcast_signal raw = one.raw();
    CHECK(one.fire());
    one = std::move(two);
    CHECK(fcast_signal_fire(raw) == FCAST_STALE);
    CHECK(one.fire() && !two);
    run_until(loop, [&] { return second == 2; });
    CHECK(first == 1);
}

/// What a callback throws comes out, and what else there was is told by the run after.
static void throwing(const fc::event_loop &loop)
{
    int told = 0, thrown = 0;
    const auto tell = [&] {
        if (told++ % 2 == 0)
            throw std::runtime_error("as a test");
        if (told == 6)
            CHECK(loop.stop());
    };
    std::vector<fc::loop_signal> all;
    for (int at = 0; at < 6; at++) {
        all.push_back(loop.on_signal(tell).value());
        CHECK(all.back().fire());
    }
    for (bool stopped = false; !stopped;)
        try {
            loop.run().value();
            stopped = true;
        } catch (const std::runtime_error &error) {
            CHECK(std::strcmp(error.what(), "as a test") == 0);
            thrown++;
        }
    CHECK(told == 6 && thrown == 3);
}

/// A callback runs the loop; another thread is not let in meanwhile, and stops it.
static void nested(const fc::event_loop &loop)
{
    bool inner = false, outer = false;
    const auto within = loop.on_timer(0ms, [&] {
                                const auto late = loop.on_timer(1ms, [&] { inner = true; }).value();
                                run_until(loop, [&] { return inner; });
                                outer = true;
                            }).value();
    run_until(loop, [&] { return outer; });

    std::thread stopper;
    const auto start = loop.on_timer(0ms, [&] {
                               stopper = std::thread([&] {
                                   CHECK(loop.run().code() == FCAST_BUSY);
                                   CHECK(loop.stop());
                               });
                               stopper.join();
                           }).value();
    loop.run().value();
    CHECK(!stopper.joinable());
    CHECK(loop.stop() && loop.run_for(patience).value() == fc::loop_round::stopped);
    std::thread other([&] { CHECK(loop.stop()); });
    loop.run().value();
    other.join();
}

/// A watch that another thread ends while the loop sleeps calls nothing more, and its descriptor,
/// which stays ready, is let go of.
static void ended_elsewhere(const fc::event_loop &loop)
{
    const pipe_ends pipe;
    int calls = 0;
    const auto count = [&](std::uint32_t) { calls++; };
    auto watch = loop.on_fd(pipe.fds[0], FCAST_LOOP_READ, count).value();
    std::thread other([&] {
        std::this_thread::sleep_for(20ms);
        watch.reset();
        pipe.fill();
        CHECK(loop.stop());
    });
    loop.run().value();
    other.join();
    CHECK(loop.run_for(5ms).value() == fc::loop_round::done && calls == 0);
    watch = loop.on_fd(pipe.fds[0], FCAST_LOOP_READ, count).value();
    run_until(loop, [&] { return calls > 0; });
}

/// A loop that goes before its watches, and in a callback of its own.
static void ends_early()
{
    fc::loop_watch watch;
    fc::loop_signal signal;
    {
        auto loop = std::make_unique<fc::event_loop>(fc::event_loop::create().value());
        watch = loop->on_timer(1h, [] {}).value();
        signal = loop->on_signal([] {}).value();
        const auto end = loop->on_timer(0ms, [&] {
                                 CHECK(loop->stop());
                                 loop.reset();
                             }).value();
        loop->run().value();
        CHECK(!loop);
    }
    CHECK(signal.fire() && watch.set_interest(FCAST_LOOP_READ) == FCAST_STALE);
    watch.reset();
}

/// A sender and a receiver that a loop has polled.
static void endpoints(const fc::event_loop &loop)
{
    constexpr std::uint64_t messages = 100;
    static std::uint8_t memory[messages];
    const fc::domain domain = open_domain();
    const fc::region region = fc::region::external(memory, sizeof memory).value();
    const auto receiver = fc::receiver::open(domain, any_port()).value();
    fc::settings with;
    with.region = region.raw();
    auto sender = fc::sender::open(domain, receiver.address().value().c_str(), with).value();

    std::uint64_t sent = 0, completed = 0, received = 0;
    bool connected = false;
    // One event a poll: the loop has to come again for what is left.
    fc::event room[1];
    auto sends = loop.on_endpoint(sender, [&] {
                         for (const fc::event &of : sender.poll(room).value()) {
                             connected |= of.is(fc::event_kind::connected);
                             completed += of.is(fc::event_kind::completed);
                         }
                         while (connected && sent < messages)
                             if (sender.send({memory + sent, 1}, {}, sent).again())
                                 break;
                             else
                                 sent++;
                         CHECK(loop.mark_busy());
                     }).value();
    const auto receives = loop.on_endpoint(receiver, [&] {
                                  for (const fc::event &of : receiver.poll(room).value())
                                      received += of.is(fc::event_kind::message);
                              }).value();
    run_until(loop, [&] { return completed == messages && received == messages; });
    // One that is released is forgotten by itself; its watch may go later.
    sender.reset();
    CHECK(loop.run_for(5ms).value() == fc::loop_round::done);
    sends.reset();
}

int main()
{
    settings();
    fc::loop_settings of;
    of.mode = FCAST_LOOP_ADAPTIVE;
    of.window_us = 100;
    const fc::event_loop loop = fc::event_loop::create(of).value();
    timers(loop);
    descriptors(loop);
    ends_itself(loop);
    signals(loop);
    throwing(loop);
    nested(loop);
    ended_elsewhere(loop);
    ends_early();
    endpoints(loop);
    std::printf("loop: ok\n");
}
