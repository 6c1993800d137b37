// Sends of four threads through one backend (SAFE), with a loop of its own thread: every accepted
// send has exactly one outcome, in the order of its thread; also where the receiver goes midway.
#include "check.hpp"

#include <fabricast_netio.hpp>

#include <set>

namespace netio3 = fabricast::netio;
using netio3::NetioStatus;
using namespace std::chrono_literals;

namespace {
constexpr int threads = 4;
constexpr std::uint64_t each = 3000;
constexpr std::size_t len = 512;
std::uint8_t memory[threads * 64 * len];

netio3::NetworkConfig config()
{
    netio3::NetworkConfig of;
    of.mode = netio3::NetworkMode::TCP;
    of.provider = test_provider();
    return of;
}

std::uint64_t key_of(int thread, std::uint64_t nth)
{
    return std::uint64_t(thread) << 32 | nth;
}

/// What a thread sends until it has sent all, or the connection is over; how many were accepted.
std::uint64_t send_all(netio3::NetworkBackend &sender, const netio3::EndPointAddress &to,
                       int thread)
{
    for (std::uint64_t nth = 0; nth < each; nth++) {
        const std::uint64_t header[] = {std::uint64_t(thread), nth};
        const std::uint8_t *at = memory + (std::size_t(thread) * 64 + nth % 64) * len;
        for (;;) {
            const NetioStatus status =
                sender.send_data(to, {at, len}, fabricast::bytes_of(header), key_of(thread, nth));
            if (status == NetioStatus::OK)
                break;
            if (status == NetioStatus::FAILED)
                return nth;
            std::this_thread::sleep_for(50us);
        }
        if (nth % 100 == 0) {
            (void)sender.get_num_available_buffers(to);
            CHECK(sender.get_pending_sends(to).size() <= 1024 + 64 + threads);
        }
    }
    return each;
}
} // namespace

static void sends(bool receiver_goes)
{
    auto in_loop = std::make_shared<netio3::EpollEventLoop>();
    auto out_loop = std::make_shared<netio3::EpollEventLoop>();
    // Of the thread of the receiver's loop.
    std::uint64_t next[threads] = {}, got = 0;
    netio3::NetworkConfig in = config();
    in.on_data_cb = [&](fabricast::span<const std::uint8_t> data) {
        CHECK(data.size() == 16 + len);
        std::uint64_t header[2];
        std::memcpy(header, data.data(), sizeof header);
        CHECK(header[0] < threads && header[1] == next[header[0]]++);
        const std::uint8_t *at = memory + (header[0] * 64 + header[1] % 64) * len;
        CHECK(std::memcmp(data.data() + 16, at, len) == 0);
        if (++got == (receiver_goes ? threads * each / 3 : threads * each))
            in_loop->stop();
    };
    auto receiver = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, in, in_loop);
    const auto address = receiver->open_listen_endpoint({test_node(), 0}, {4096, 256});

    // Of the thread of the sender's loop.
    std::multiset<std::uint64_t> told;
    std::uint64_t expected[threads] = {};
    std::atomic<bool> established{false}, closed{false};
    netio3::NetworkConfig out = config();
    out.thread_safety = netio3::ThreadSafetyModel::SAFE;
    out.on_connection_established_cb = [&](const auto &) { established = true; };
    out.on_send_completed_cb = [&](const auto &, std::uint64_t key) {
        CHECK((key & 0xffffffff) == expected[key >> 32]++);
        told.insert(key);
    };
    out.on_connection_closed_cb = [&](const auto &, const std::vector<std::uint64_t> &keys) {
        told.insert(keys.begin(), keys.end());
        closed = true;
        out_loop->stop();
    };
    auto sender = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, out, out_loop);
    netio3::ConnectionParametersSendZeroCopy from;
    from.mr_start = memory;
    from.mr_size = sizeof memory;
    from.num_header_slots = 64;

    std::thread receiving([&] {
        in_loop->run();
        if (receiver_goes)
            receiver.reset();
    });
    std::thread driving([&] { out_loop->run(); });
    // From a thread that is not the loop's, while it runs.
    sender->open_send_endpoint(address, from);
    while (!established)
        std::this_thread::sleep_for(1ms);
    std::uint64_t accepted[threads] = {};
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; thread++)
        all.emplace_back(
            [&, thread] { accepted[thread] = send_all(*sender, address, thread); });
    for (std::thread &thread : all)
        thread.join();
    receiving.join();
    std::uint64_t total = 0;
    for (int thread = 0; thread < threads; thread++)
        total += accepted[thread];
    if (!receiver_goes) {
        CHECK(total == threads * each);
        std::thread again([&] { in_loop->run(); });
        sender->close_send_endpoint(address);
        driving.join();
        in_loop->stop();
        again.join();
    } else {
        driving.join();
    }
    CHECK(closed);
    CHECK(told.size() == total);
    for (int thread = 0; thread < threads; thread++)
        for (std::uint64_t nth = 0; nth < accepted[thread]; nth++)
            CHECK(told.count(key_of(thread, nth)) == 1);
    std::printf("sends_threads: %llu sends, each with one outcome\n", (unsigned long long)total);
}

int main()
{
    for (std::size_t at = 0; at < sizeof memory; at++)
        memory[at] = std::uint8_t(at * 31 >> 3);
    sends(false);
    sends(true);
}
