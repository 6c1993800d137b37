// The peer of a backend of netio3's interface is killed in the middle, with sends in flight, sends
// of other threads in the queue, and buffers that the program has not sent: each send has exactly
// one outcome, each buffer is free again, and those that the program holds stay its own.
#include "check.hpp"

#include <fabricast_netio.hpp>

#include <algorithm>
#include <csignal>
#include <set>
#include <stdexcept>

#include <sys/prctl.h>
#include <sys/wait.h>

namespace netio3 = fabricast::netio;
using netio3::EndPointAddress;
using netio3::NetioStatus;
using namespace std::chrono_literals;

namespace {
constexpr std::size_t message_len = 500000;
std::uint8_t memory[message_len];

netio3::NetworkConfig config()
{
    netio3::NetworkConfig of;
    of.mode = netio3::NetworkMode::TCP;
    of.provider = test_provider();
    return of;
}

std::unique_ptr<netio3::NetworkBackend> backend(const netio3::NetworkConfig &of,
                                                std::shared_ptr<netio3::EpollEventLoop> loop)
{
    return netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, of, std::move(loop));
}

netio3::ConnectionParametersSendZeroCopy whole(std::uint32_t slots)
{
    netio3::ConnectionParametersSendZeroCopy of;
    of.mr_start = memory;
    of.mr_size = sizeof memory;
    of.num_header_slots = slots;
    return of;
}

void wait_until(const std::function<bool()> &is_so)
{
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (!is_so()) {
        CHECK(std::chrono::steady_clock::now() < end);
        std::this_thread::sleep_for(1ms);
    }
}

/// A process that listens, takes some messages, and stands still until it is killed. It is forked
/// before this process has called the library.
class peer {
public:
    peer()
    {
        int port[2];
        CHECK(::pipe(port) == 0);
        const pid_t parent = ::getpid();
        pid_ = ::fork();
        CHECK(pid_ >= 0);
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() == parent)
                serve(port[1]);
            ::_exit(1);
        }
        ::close(port[1]);
        std::uint16_t number = 0;
        CHECK(::read(port[0], &number, sizeof number) == sizeof number);
        ::close(port[0]);
        address = EndPointAddress(test_node(), number);
    }
    peer(const peer &) = delete;
    peer &operator=(const peer &) = delete;
    ~peer() { kill(); }
    void kill()
    {
        if (pid_ > 0) {
            CHECK(::kill(pid_, SIGKILL) == 0);
            CHECK(::waitpid(pid_, nullptr, 0) == pid_);
        }
        pid_ = 0;
    }
    EndPointAddress address;

private:
    /// What sockets and these receives hold is all that leaves a sender after the first messages.
    [[noreturn]] static void serve(int port)
    {
        auto loop = std::make_shared<netio3::EpollEventLoop>();
        std::size_t got = 0;
        netio3::NetworkConfig in = config();
        in.listen_settings.max_connections = 1;
        in.listen_settings.credits = 60;
        in.on_data_cb = [&](fabricast::span<const std::uint8_t>) {
            if (++got == 5)
                loop->stop();
        };
        auto receiver = backend(in, loop);
        const auto at = receiver->open_listen_endpoint({test_node(), 0}, {message_len + 64, 64});
        const std::uint16_t number = at.port();
        CHECK(::write(port, &number, sizeof number) == sizeof number);
        loop->run();
        for (;;)
            ::pause();
    }
    pid_t pid_ = 0;
};

/// A loop on a thread of its own.
class driven {
public:
    driven() : thread_([this] { loop->run(); }) {}
    driven(const driven &) = delete;
    driven &operator=(const driven &) = delete;
    ~driven() { end(); }
    void end()
    {
        loop->stop();
        if (thread_.joinable())
            thread_.join();
    }
    const std::shared_ptr<netio3::EpollEventLoop> loop =
        std::make_shared<netio3::EpollEventLoop>();

private:
    std::thread thread_;
};
} // namespace

enum class manner { open, closing, reconnecting };

/// Sends of other threads: those in flight, those in the queue, and those that meet the end.
static void queued(peer &peer, manner how)
{
    driven out_loop;
    // Of the loop's thread.
    std::multiset<std::uint64_t> told;
    std::size_t completed = 0, ends = 0;
    std::atomic<bool> established{false}, over{false};
    netio3::NetworkConfig out = config();
    out.thread_safety = netio3::ThreadSafetyModel::SAFE;
    out.send_queue = 64;
    // One attempt more, which nobody answers.
    if (how == manner::reconnecting) {
        out.send_settings.reconnect_attempts = 1;
        out.send_settings.reconnect_first_ms = 1;
    }
    const std::size_t all_ends = how == manner::reconnecting ? 2 : 1;
    out.on_connection_established_cb = [&](const auto &) { established = true; };
    out.on_send_completed_cb = [&](const auto &, std::uint64_t key) {
        CHECK(ends == 0);
        completed++;
        told.insert(key);
    };
    out.on_connection_closed_cb = [&](const auto &, const std::vector<std::uint64_t> &keys) {
        told.insert(keys.begin(), keys.end());
        over = ++ends == all_ends;
    };
    out.on_connection_refused_cb = [](const auto &) { CHECK(false); };
    auto sender = backend(out, out_loop.loop);
    sender->open_send_endpoint(peer.address, whole(128));
    wait_until([&] { return established.load(); });

    std::vector<std::uint64_t> accepted[3];
    std::vector<std::thread> threads;
    for (std::uint64_t nth = 0; nth < 3; nth++)
        threads.emplace_back([&, nth] {
            std::uint64_t key = nth << 32;
            for (;;) {
                const NetioStatus status =
                    sender->send_data(peer.address, memory, fabricast::bytes_of(key), key);
                if (status == NetioStatus::FAILED)
                    return;
                if (status == NetioStatus::OK)
                    accepted[nth].push_back(key++);
                else
                    std::this_thread::sleep_for(100us);
            }
        });
    // The queue is full, and so are the sockets.
    wait_until([&] { return sender->get_pending_sends(peer.address).size() > 64 + 20; });
    if (how == manner::closing)
        sender->close_send_endpoint(peer.address);
    peer.kill();
    for (std::thread &thread : threads)
        thread.join();
    wait_until([&] { return over.load(); });
    CHECK(sender->get_pending_sends(peer.address).empty());
    CHECK(sender->send_data(peer.address, memory, {}, 0) == NetioStatus::FAILED);
    out_loop.end();
    std::multiset<std::uint64_t> all;
    for (const auto &keys : accepted)
        all.insert(keys.begin(), keys.end());
    std::printf("queued %d: %zu of %zu completed\n", int(how), completed, all.size());
    CHECK(told == all && ends == all_ends);
    CHECK(completed >= 5 && told.size() - completed >= 64);
}

/// Sends of the queue that fail on a connection that stands are told one by one; what is not told
/// when it ends is told then, though the program's callback throws each time.
static void failed_and_lost(peer &peer)
{
    auto loop = std::make_shared<netio3::EpollEventLoop>();
    bool established = false, closed = false;
    std::multiset<std::uint64_t> told;
    netio3::NetworkConfig out = config();
    out.thread_safety = netio3::ThreadSafetyModel::SAFE;
    out.on_connection_established_cb = [&](const auto &) { established = true; };
    out.on_send_failed_cb = [&](const auto &, std::uint64_t key, std::string_view) {
        CHECK(!closed && key == told.size());
        told.insert(key);
        peer.kill();
        throw std::runtime_error("as a test");
    };
    out.on_connection_closed_cb = [&](const auto &, const std::vector<std::uint64_t> &keys) {
        told.insert(keys.begin(), keys.end());
        closed = true;
    };
    auto sender = backend(out, loop);
    // Longer than the peer takes.
    std::vector<std::uint8_t> much(2 * message_len);
    netio3::ConnectionParametersSendZeroCopy from = whole(16);
    from.mr_start = much.data();
    from.mr_size = much.size();
    sender->open_send_endpoint(peer.address, from);
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (!established) {
        CHECK(std::chrono::steady_clock::now() < end);
        loop->run_for(1ms);
    }
    constexpr std::uint64_t count = 200;
    std::thread other([&] {
        for (std::uint64_t key = 0; key < count; key++)
            CHECK(sender->send_data(peer.address, much, {}, key) == NetioStatus::OK);
    });
    other.join();
    while (!closed) {
        CHECK(std::chrono::steady_clock::now() < end);
        try {
            loop->run_for(1ms);
        } catch (const std::runtime_error &) {
        }
    }
    const std::set<std::uint64_t> each(told.begin(), told.end());
    CHECK(told.size() == count && each.size() == count);
}

/// Buffers: those in flight, those in the queue, and those that the program has.
static void buffers(peer &peer)
{
    driven out_loop;
    constexpr std::size_t total = 96, kept = 5;
    std::mutex mutex;
    // Sends of each buffer without an outcome. It is free before its outcome is told, so another
    // thread may have sent it again.
    std::vector<std::size_t> out_now(total);
    std::size_t ends = 0;
    std::atomic<bool> established{false}, closed{false}, refused{false};
    netio3::NetworkConfig out = config();
    out.thread_safety = netio3::ThreadSafetyModel::SAFE;
    out.on_connection_established_cb = [&](const auto &) { established = true; };
    out.on_send_completed_cb = [&](const auto &, std::uint64_t id) {
        std::lock_guard<std::mutex> lock(mutex);
        CHECK(!closed && id < total && out_now[id] > 0);
        out_now[id]--;
    };
    netio3::ConnectionParametersSendBuffered of;
    of.buf_size = message_len;
    of.num_buf = total;
    std::unique_ptr<netio3::NetworkBackend> sender;
    std::vector<netio3::NetworkBuffer *> held;
    std::set<netio3::NetworkBuffer *> fresh;
    out.on_connection_closed_cb = [&](const auto &, const std::vector<std::uint64_t> &keys) {
        CHECK(keys.empty() && ++ends == 1);
        // The next endpoint of this address has buffers of its own, all of them.
        sender->open_send_endpoint(peer.address, of);
        while (netio3::NetworkBuffer *buffer = sender->get_buffer(peer.address))
            CHECK(fresh.insert(buffer).second);
        CHECK(fresh.size() == total);
        // What the program holds can be written to, and goes back to where it came from.
        for (netio3::NetworkBuffer *buffer : held) {
            buffer->resize(buffer->capacity());
            std::memset(buffer->data(), 7, buffer->size());
            CHECK(fresh.count(buffer) == 0);
            CHECK(sender->send_buffer(peer.address, buffer) == NetioStatus::FAILED);
            sender->release_buffer(peer.address, buffer);
            CHECK(sender->get_buffer(peer.address) == nullptr);
        }
        closed = true;
    };
    out.on_connection_refused_cb = [&](const auto &) { refused = true; };
    sender = backend(out, out_loop.loop);
    sender->open_send_endpoint(peer.address, of);
    wait_until([&] { return established.load(); });
    while (held.size() < kept)
        held.push_back(sender->get_buffer(peer.address));
    // Until those that are out stay out.
    for (auto last = std::chrono::steady_clock::now();
         std::chrono::steady_clock::now() - last < 300ms;) {
        netio3::NetworkBuffer *buffer = sender->get_buffer(peer.address);
        if (!buffer) {
            std::this_thread::sleep_for(1ms);
            continue;
        }
        buffer->resize(buffer->capacity());
        {
            std::lock_guard<std::mutex> lock(mutex);
            out_now[buffer->id()]++;
        }
        CHECK(sender->send_buffer(peer.address, buffer) == NetioStatus::OK);
        last = std::chrono::steady_clock::now();
    }
    peer.kill();
    wait_until([&] { return closed.load(); });

    wait_until([&] { return refused.load(); });
    CHECK(std::count_if(out_now.begin(), out_now.end(), [](auto n) { return n > 0; }) > 0);
    for (netio3::NetworkBuffer *buffer : fresh) {
        std::memset(buffer->data(), 8, buffer->capacity());
        CHECK(sender->send_buffer(peer.address, buffer) == NetioStatus::FAILED);
        sender->release_buffer(peer.address, buffer);
    }
    CHECK(sender->get_buffer(peer.address) == nullptr);
    out_loop.end();
}

/// Buffers that two endpoints share: all are there for the one whose peer lives.
static void shared_buffers(peer &dies, const peer &lives)
{
    auto loop = std::make_shared<netio3::EpollEventLoop>();
    constexpr std::size_t total = 96, kept = 3;
    std::size_t established = 0, sent = 0, completed = 0;
    bool closed = false;
    netio3::NetworkConfig out = config();
    out.shared_send_buffers = {true, message_len, total};
    out.on_connection_established_cb = [&](const auto &) { established++; };
    out.on_send_completed_cb = [&](const EndPointAddress &to, std::uint64_t) {
        CHECK(to == dies.address && !closed);
        completed++;
    };
    out.on_connection_closed_cb = [&](const EndPointAddress &to, const auto &keys) {
        CHECK(to == dies.address && keys.empty() && !closed);
        closed = true;
    };
    auto sender = backend(out, loop);
    sender->open_send_endpoint(dies.address, netio3::ConnectionParametersSendBuffered{});
    sender->open_send_endpoint(lives.address, netio3::ConnectionParametersSendBuffered{});
    const auto end = std::chrono::steady_clock::now() + 60s;
    const auto run_until = [&](const auto &is_so) {
        while (!is_so()) {
            CHECK(std::chrono::steady_clock::now() < end);
            loop->run_for(1ms);
        }
    };
    run_until([&] { return established == 2; });
    std::vector<netio3::NetworkBuffer *> held;
    while (held.size() < kept)
        held.push_back(sender->get_buffer(dies.address));
    for (std::size_t at = 0; at < total - kept; at++) {
        netio3::NetworkBuffer *buffer = sender->get_buffer(dies.address);
        CHECK(buffer);
        buffer->resize(buffer->capacity());
        NetioStatus status = NetioStatus::NO_RESOURCES;
        if (at < total / 2)
            status = sender->send_buffer(dies.address, buffer);
        if (status == NetioStatus::OK)
            sent++;
        else
            held.push_back(buffer);
    }
    CHECK(sender->get_buffer(lives.address) == nullptr);
    dies.kill();
    run_until([&] { return closed; });
    CHECK(completed < sent);
    for (netio3::NetworkBuffer *buffer : held) {
        CHECK(sender->send_buffer(dies.address, buffer) == NetioStatus::FAILED);
        sender->release_buffer(dies.address, buffer);
    }
    std::set<netio3::NetworkBuffer *> all;
    while (netio3::NetworkBuffer *buffer = sender->get_buffer(lives.address))
        CHECK(all.insert(buffer).second);
    CHECK(all.size() == total);
}

int main()
{
    peer peers[7];
    queued(peers[0], manner::open);
    queued(peers[1], manner::closing);
    queued(peers[2], manner::reconnecting);
    failed_and_lost(peers[3]);
    buffers(peers[4]);
    shared_buffers(peers[5], peers[6]);
    std::printf("netio_lost: ok\n");
}
