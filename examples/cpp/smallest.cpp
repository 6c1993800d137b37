// The smallest sender and receiver, in one process: a message with a header, sent from where it
// lies, and read where it arrived.
//
//     c++ -std=c++17 smallest.cpp $(pkg-config --cflags --libs fabricast) -o smallest && ./smallest

#include <fabricast.hpp>

#include <cstdio>

namespace fc = fabricast;

int main()
try {
    fc::fabric_settings over;
    over.provider = "tcp";
    over.node = "127.0.0.1";
    const fc::domain domain = fc::fabric::open(over).value().open_domain().value();

    const fc::receiver receiver = fc::receiver::open(domain, "127.0.0.1:0").value();

    // Memory of the program's own; the endpoint registers it for as long as it lives.
    static std::uint8_t memory[] = "these bytes are not copied on their way out";
    const fc::region region = fc::region::external(memory, sizeof memory).value();
    fc::settings from;
    from.region = region.raw();
    const std::string address = receiver.address().value();
    const fc::sender sender = fc::sender::open(domain, address.c_str(), from).value();

    fc::event room[16];
    const std::uint32_t header = 7;
    for (bool arrived = false, completed = false; !arrived || !completed;) {
        for (const fc::event &event : sender.poll(room).value()) {
            if (event.is(fc::event_kind::connected))
                if (!sender.send(memory, fc::bytes_of(header), 42))
                    return 1;
            if (event.is(fc::event_kind::completed)) {
                std::printf("key %llu is done\n", (unsigned long long)event.key);
                completed = true;
            }
            if (event.is(fc::event_kind::disconnected))
                return 1;
        }
        for (const fc::event &event : receiver.poll(room).value())
            if (event.is(fc::event_kind::message)) {
                std::printf("a header of %zu bytes, and: %s\n", event.header_len,
                            static_cast<const char *>(event.data));
                arrived = true;
            }
        (void)sender.wait(1);
    }
} catch (const fc::error &error) {
    std::fprintf(stderr, "smallest: %s\n", error.what());
    return 1;
}
