// SendEndpointZeroCopy as netio3's pages have it, without a backend: its order, its active endpoint,
// header slots that several share, many peers by number, slots that nobody has, and what it throws.
#include "check.hpp"

#include <fabricast_netio.hpp>

#include <algorithm>
#include <compare>
#include <set>
#include <stdexcept>
#include <type_traits>

namespace fc = fabricast;
namespace netio3 = fabricast::netio;
using netio3::ActiveEndpoint;
using netio3::NetioStatus;
using netio3::SendEndpointZeroCopy;
using netio3::ZeroCopyBufferManager;

namespace {
std::uint8_t memory[64 * 1024];
std::optional<ZeroCopyBufferManager> nothing_shared;

netio3::ConnectionParametersSendZeroCopy whole(std::uint32_t slots)
{
    netio3::ConnectionParametersSendZeroCopy of;
    of.mr_start = memory;
    of.mr_size = sizeof memory;
    of.num_header_slots = slots;
    return of;
}

netio3::EndPointAddress at(const fc::receiver &receiver)
{
    return netio3::EndPointAddress::parse(receiver.address().value());
}

/// A receiver, and what came to it.
struct target {
    explicit target(const fc::domain &in) : receiver(fc::receiver::open(in, any_port()).value()) {}
    fc::receiver receiver;
    std::vector<std::string> got;
    void poll()
    {
        fc::event room[16];
        for (const fc::event &of : receiver.poll(room).value())
            if (of.is(fc::event_kind::message))
                got.emplace_back(reinterpret_cast<const char *>(of.data), of.data_len);
        (void)receiver.wait(1);
    }
};

/// Polls an endpoint; whether it stands, and the slots of sends that have their outcome.
struct driven {
    explicit driven(SendEndpointZeroCopy &of) : endpoint(of) {}
    SendEndpointZeroCopy &endpoint;
    bool stands = false;
    std::vector<std::uint64_t> done;
    void poll()
    {
        fc::event room[16];
        for (const fc::event &of : endpoint.get_active_endpoint().poll(room).value()) {
            stands |= of.is(fc::event_kind::connected);
            CHECK(!of.is(fc::event_kind::failed) && !of.is(fc::event_kind::disconnected));
            if (of.is(fc::event_kind::completed))
                done.push_back(of.key);
        }
    }
};

fc::bytes header(const char *text)
{
    return {reinterpret_cast<const std::uint8_t *>(text), std::strlen(text)};
}
} // namespace

/// Its order is total, by <=>; the active endpoint is const and not, as the endpoint is.
static void ordered(const fc::domain &domain)
{
    target to(domain);
    ActiveEndpoint one(at(to.receiver)), two(at(to.receiver));
    netio3::DomainManager &in = const_cast<netio3::DomainManager &>(domain);
    SendEndpointZeroCopy first(one, whole(4), nothing_shared, in);
    SendEndpointZeroCopy second(two, whole(4), nothing_shared, in);
    const SendEndpointZeroCopy &looked_at = first;
    static_assert(std::is_same_v<decltype(first <=> second), std::strong_ordering>);
    CHECK((first <=> first) == std::strong_ordering::equal && first == looked_at);
    CHECK((first <=> second) != std::strong_ordering::equal && first != second);
    CHECK((first < second) != (second < first) && (first <= second) == !(first > second));
    static_assert(std::is_same_v<decltype(first.get_active_endpoint()), ActiveEndpoint &>);
    static_assert(
        std::is_same_v<decltype(looked_at.get_active_endpoint()), const ActiveEndpoint &>);
    CHECK(&first.get_active_endpoint() == &one && &looked_at.get_active_endpoint() == &one);
    CHECK(one && one.address() == at(to.receiver) && !one.is_connectionless());
    // It is open: nobody else makes it his.
    bool thrown = false;
    try {
        SendEndpointZeroCopy again(one, whole(4), nothing_shared, in);
    } catch (const netio3::FailedOpenActiveEndpoint &) {
        thrown = true;
    }
    CHECK(thrown);
}

/// Two endpoints over one manager: its slots are for both, a header slot has one owner, and their
/// memory is the manager's or their own.
static void shared(const fc::domain &domain)
{
    target to(domain);
    static std::uint8_t other[4096];
    std::memset(other, 'o', sizeof other);
    std::memset(memory, 'm', sizeof memory);
    std::optional<ZeroCopyBufferManager> manager(whole(3));
    ActiveEndpoint one(at(to.receiver)), two(at(to.receiver));
    netio3::ConnectionParametersSendZeroCopy none, own;
    own.mr_start = other;
    own.mr_size = sizeof other;
    SendEndpointZeroCopy first(one, none, manager, domain), second(two, own, manager, domain);
    driven a(first), b(second);
    while (!a.stands || !b.stands) {
        a.poll();
        b.poll();
        to.poll();
    }
    // Two of the first and one of the second: there are three in all.
    const auto send = [](SendEndpointZeroCopy &by, const std::uint8_t *from, std::uint64_t key) {
        return by.send_data({from, 4}, header("h"), key);
    };
    CHECK(send(first, memory, 0) == NetioStatus::OK && send(first, memory, 7) == NetioStatus::OK);
    CHECK(send(second, other, 8) == NetioStatus::OK);
    CHECK(send(first, memory, 9) == NetioStatus::NO_RESOURCES);
    CHECK(send(second, other, 9) == NetioStatus::NO_RESOURCES);
    CHECK(manager->num_free() == 0 && first.get_num_available_buffers() == 0);
    CHECK(first.get_pending_sends().size() == 2);
    CHECK(second.get_pending_sends() == std::vector<std::uint64_t>{8});
    while (a.done.size() < 2 || b.done.empty() || to.got.size() < 3) {
        a.poll();
        b.poll();
        to.poll();
    }
    // The key 0 is a key, and a slot of another endpoint is nobody's here.
    CHECK(!first.try_release(b.done[0]) && first.release_buffer(b.done[0]) == 0);
    CHECK(!second.try_release(a.done[0]) && !first.try_release(3) && !first.try_release(~0ull));
    std::multiset<std::uint64_t> keys{first.try_release(a.done[0]).value(),
                                      first.release_buffer(a.done[1])};
    CHECK(keys == (std::multiset<std::uint64_t>{0, 7}));
    CHECK(!first.try_release(a.done[0]) && first.release_buffer(a.done[0]) == 0);
    CHECK(manager->num_free() == 2 && send(second, other, 10) == NetioStatus::OK);
    CHECK(second.try_release(b.done[0]) == 8);
    while (b.done.size() < 2 || to.got.size() < 4) {
        b.poll();
        to.poll();
    }
    CHECK(second.release_buffer(b.done[1]) == 10 && manager->num_free() == 3);
    std::sort(to.got.begin(), to.got.end());
    CHECK((to.got == std::vector<std::string>{"hmmmm", "hmmmm", "hoooo", "hoooo"}));

    // What an endpoint has that goes is the others' again.
    ActiveEndpoint three(at(to.receiver));
    {
        SendEndpointZeroCopy brief(three, none, manager, domain);
        driven c(brief);
        while (!c.stands) {
            c.poll();
            to.poll();
        }
        CHECK(send(brief, memory, 1) == NetioStatus::OK && manager->num_free() == 2);
    }
    CHECK(manager->num_free() == 3);
    three.reset();
}

/// An endpoint without connections: `addr` says to whom.
static void by_number()
{
    fc::fabric_settings settings;
    settings.kind = FCAST_KIND_RDM;
    settings.node = test_node();
    auto fabric = fc::fabric::open(settings);
    for (const char *name : {"tcp", "net"})
        if (!fabric || name == std::string("tcp")) {
            settings.provider = name;
            fabric = fc::fabric::open(settings);
        }
    if (!fabric) {
        std::printf("SKIPPED: netio's addr: no provider without connections\n");
        return;
    }
    const fc::domain domain = fabric->open_domain().value();
    const netio3::EndPointAddress any{test_node(), 0};
    ActiveEndpoint many = ActiveEndpoint::connectionless(any);
    SendEndpointZeroCopy sends(many, whole(8), nothing_shared, domain);
    CHECK(many.is_connectionless() && many.address().port() != 0);
    fc::connectionless peers[] = {fc::connectionless::open(domain, any_port()).value(),
                                  fc::connectionless::open(domain, any_port()).value()};
    std::uint64_t numbers[2];
    std::vector<std::string> got[2];
    std::memset(memory, 'x', sizeof memory);
    for (int i = 0; i < 2; i++) {
        const auto address = netio3::EndPointAddress::parse(peers[i].address().value());
        numbers[i] = many.add_peer(address).value();
    }
    CHECK(numbers[0] != numbers[1]);
    driven it(sends);
    const iovec two[] = {{memory, 2}, {memory + 100, 1}};
    std::size_t sent = 0;
    while (it.done.size() < 4 || got[0].size() < 2 || got[1].size() < 2) {
        it.poll();
        for (int i = 0; i < 2; i++) {
            fc::event room[16];
            for (const fc::event &of : peers[i].poll(room).value())
                if (of.is(fc::event_kind::message))
                    got[i].emplace_back(static_cast<const char *>(of.data), of.data_len);
        }
        if (sent == 4)
            continue;
        const std::uint64_t to = numbers[sent % 2];
        const fc::bytes front = header(sent % 2 ? "to 1:" : "to 0:");
        const NetioStatus status =
            sent < 2 ? sends.send_data({memory, 1}, front, sent, to)
                     : sends.send_data(fc::span<const iovec>(two), front, sent, to);
        CHECK(status != NetioStatus::FAILED);
        sent += status == NetioStatus::OK;
    }
    CHECK((got[0] == std::vector<std::string>{"to 0:x", "to 0:xxx"}));
    CHECK((got[1] == std::vector<std::string>{"to 1:x", "to 1:xxx"}));
    CHECK(sends.send_data({memory, 1}, {}, 9, 1ull << 60) == NetioStatus::FAILED);
    CHECK(many.remove_peer(numbers[0], 1000));
}

/// A handler of whichever base catches that there are no buffers, once.
static void thrown(const fc::domain &domain)
{
    ActiveEndpoint to(netio3::EndPointAddress(test_node(), 1));
    const auto make = [&] { SendEndpointZeroCopy none(to, {}, nothing_shared, domain); };
    int caught = 0;
    try {
        make();
    } catch (const std::logic_error &error) {
        caught += std::strstr(error.what(), "no memory to send from") != nullptr;
    }
    try {
        make();
    } catch (const fc::error &error) {
        caught += error.code() == FCAST_INVALID && std::strlen(error.what()) > 20;
    }
    try {
        make();
    } catch (const std::exception &error) {
        caught += dynamic_cast<const netio3::NoBuffersAllocated *>(&error) != nullptr;
    }
    try {
        std::optional<ZeroCopyBufferManager> empty(whole(0));
    } catch (const std::logic_error &) {
        caught++;
    }
    // All others are what they were.
    try {
        SendEndpointZeroCopy none(fc::domain(), to.address(), whole(4));
    } catch (const std::runtime_error &error) {
        caught += dynamic_cast<const fc::error *>(&error) != nullptr;
    }
    CHECK(caught == 5);
}

int main()
{
    const fc::domain domain = open_domain();
    ordered(domain);
    shared(domain);
    by_number();
    thrown(domain);
    return 0;
}
