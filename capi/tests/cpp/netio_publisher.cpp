// The publisher of netio3's front end: the three ways to publish, what nobody wants, back-pressure,
// another thread, the close.
#include "check.hpp"

#include <fabricast_netio_publisher.hpp>

#include <map>

namespace fc = fabricast;
namespace netio3 = fabricast::netio;
using netio3::NetioPublisherStatus;
using netio3::SendMethod;
using namespace std::chrono_literals;

namespace {
constexpr std::uint64_t total = 1000;
std::uint8_t memory[total * 16];
fc::event room[64];

struct publishing {
    std::shared_ptr<netio3::EpollEventLoop> loop = std::make_shared<netio3::EpollEventLoop>();
    netio3::NetioPublisherConfig config;
    std::unique_ptr<netio3::NetioPublisher> publisher;
    fc::domain domain = open_domain();
    fc::subscriber subscriber;
    std::uint64_t number = 0, got = 0, subscribed = 0, unsubscribed = 0, writable = 0;
    std::map<std::uint64_t, int> keys;

    explicit publishing(SendMethod method)
    {
        config.backend_mode = netio3::NetworkMode::TCP;
        config.provider = test_provider();
        config.method = method;
        config.nbuffers = 8;
        config.buffersize = 1024;
        config.publisher_settings.slow = FCAST_SLOW_WAIT;
        config.publisher_settings.slow_queue = 100;
        config.publisher_settings.slow_ms = 60000;
        config.mr_start = memory;
        config.mr_size = sizeof memory;
    }
    void open()
    {
        publisher = std::make_unique<netio3::NetioPublisher>(config, loop,
                                                             netio3::EndPointAddress("127.0.0.1", 0));
        publisher->set_on_publish_completed([this](std::uint64_t key) { keys[key]++; });
        publisher->set_on_subscription([this](std::uint64_t tag) { subscribed += tag == 7; });
        publisher->set_on_unsubscription([this](std::uint64_t tag) { unsubscribed += tag == 7; });
        publisher->set_on_writable([this] { writable++; });
        CHECK(publisher->address().port() != 0);
        subscriber = fc::subscriber::open(domain).value();
        number = subscriber.connect(publisher->address().to_string().c_str()).value();
        CHECK(subscriber.subscribe(number, 7));
        const fc::bytes one(memory, 1);
        CHECK(publisher->publish(7, one) == NetioPublisherStatus::NO_SUBSCRIPTIONS);
        until([this] { return subscribed == 1; });
        CHECK(publisher->num_subscriptions(7) == 1);
    }
    void until(const std::function<bool()> &is_done)
    {
        const auto end = std::chrono::steady_clock::now() + 60s;
        while (!is_done()) {
            CHECK(std::chrono::steady_clock::now() < end);
            loop->run_for(1ms);
            for (const fc::event &event : subscriber.poll(room).value())
                if (event.kind == FCAST_EVENT_PUBLICATION)
                    read(event);
        }
    }
    /// One format, however it was published.
    void read(const fc::event &event)
    {
        fc::small_messages all(event.payload_bytes(), FCAST_FORMAT_NETIO3);
        fc::small_message some[16];
        for (auto next = all.next(some).value(); !next.empty(); next = all.next(some).value())
            for (const fc::small_message &message : next) {
                CHECK(message.tag == 7 && message.len == 16 && message.status == got % 2);
                CHECK(std::memcmp(message.data, memory + got * 16, 16) == 0);
                got++;
            }
    }
    NetioPublisherStatus publish(std::uint64_t at)
    {
        return publisher->publish(7, {memory + at * 16, 16}, false, std::uint8_t(at % 2), at);
    }
    void publish_all()
    {
        std::uint64_t at = 0, refused = 0;
        until([&] {
            while (at < total) {
                const NetioPublisherStatus done = publish(at);
                refused += done == NetioPublisherStatus::NO_RESOURCES;
                if (done == NetioPublisherStatus::NO_RESOURCES)
                    break;
                CHECK(done == NetioPublisherStatus::OK);
                at++;
            }
            return got == total;
        });
        CHECK(refused == 0 || writable > 0);
    }
    void close()
    {
        publisher->close();
        CHECK(publish(0) == NetioPublisherStatus::FAILED);
        until([this] { return publisher->is_closed(); });
    }
};
} // namespace

static void copied(SendMethod method)
{
    publishing all(method);
    all.open();
    all.publish_all();
    const std::vector<std::uint8_t> large(2000);
    CHECK(all.publisher->publish(7, large) == NetioPublisherStatus::FAILED);
    CHECK(all.keys.empty());
    CHECK(all.subscriber.unsubscribe(all.number, 7));
    all.until([&] { return all.unsubscribed == 1; });
    CHECK(all.publish(0) == NetioPublisherStatus::NO_SUBSCRIPTIONS);
    all.close();
}

static void in_place()
{
    publishing all(SendMethod::ZERO_COPY);
    all.open();
    all.publish_all();
    all.until([&] { return all.keys.size() == total; });
    for (const auto &[key, times] : all.keys)
        CHECK(key < total && times == 1);
    const std::uint8_t elsewhere[4] = {};
    CHECK(all.publisher->publish(7, elsewhere) == NetioPublisherStatus::FAILED);
    all.close();
}

/// Another thread publishes while the loop runs, which wakes for what it packed.
static void from_a_thread()
{
    publishing all(SendMethod::BUFFERED);
    all.config.thread_safety = netio3::ThreadSafetyModel::SAFE;
    all.config.flush_interval = 0us;
    all.open();
    std::thread other([&] {
        for (std::uint64_t at = 0; at < total;)
            if (all.publish(at) == NetioPublisherStatus::OK)
                at++;
            else
                std::this_thread::yield();
        all.publisher->flush();
    });
    all.until([&] { return all.got == total; });
    other.join();
    all.close();
}

static void refused()
{
    publishing none(SendMethod::ZERO_COPY);
    none.config.mr_size = 0;
    bool thrown = false;
    try {
        none.open();
    } catch (const netio3::NoBuffersAllocated &) {
        thrown = true;
    }
    CHECK(thrown);
    none.config.method = SendMethod::BUFFERED;
    none.config.nbuffers = 0;
    none.config.publisher_settings.waiting = 1;
    thrown = false;
    try {
        none.open();
    } catch (const netio3::InvalidEndpointAddress &error) {
        thrown = error.code() == FCAST_INVALID;
    }
    CHECK(thrown);
}

int main()
{
    for (std::size_t i = 0; i < sizeof memory; i++)
        memory[i] = std::uint8_t(i * 7 + i / 16);
    copied(SendMethod::BUFFERED);
    copied(SendMethod::SEND);
    in_place();
    from_a_thread();
    refused();
    std::printf("netio_publisher: ok\n");
}
