// Files in C++: written and read with the calling thread and with the pool's, from plain memory and
// from a region.
#include "check.hpp"

#include <fabricast_file.hpp>

#include <numeric>
#include <string>
#include <vector>

#include <unistd.h>

namespace fc = fabricast;

int main()
{
    const char *temporary = std::getenv("TMPDIR");
    std::string path = std::string(temporary ? temporary : "/tmp") + "/fabricast-XXXXXX";
    const int fd = ::mkstemp(&path[0]);
    CHECK(fd >= 0);

    std::vector<std::uint8_t> data(1 << 20), back(1 << 20);
    std::iota(data.begin(), data.end(), 7);
    {
        const fc::file file = fc::file::open(path.c_str(), "w+").value();
        const fc::file_transfer written = file.pwrite(data, 0).value();
        CHECK(written.wait().value().bytes == data.size());
        const fc::file_transfer read = file.pread(back, 0).value();
        CHECK(read.wait(60000).value().bytes == data.size() && back == data);
        CHECK(file.size().value() == data.size());
    }
    const fc::file again = fc::file::from_fd(fd).value();
    const fc::region region = fc::region::allocate(data.size()).value();
    fc::file_options parallel;
    parallel.parallel = 1;
    CHECK(again.read(region.memory(), 0, region.raw(), parallel).value().bytes == data.size());
    CHECK(std::memcmp(region.memory().data(), data.data(), data.size()) == 0);
    CHECK(again.write(region.memory().first(10), 3, region.raw()).value().bytes == 10);
    CHECK(again.read(back, data.size() - 5).value().bytes == 5);
    const fc::bytes parts[] = {fc::bytes(data).first(100), fc::bytes(data).subspan(1000, 50)};
    CHECK(again.writev(parts, 10).value().bytes == 150);
    const fc::mutable_bytes places[] = {fc::mutable_bytes(back).first(30),
                                        fc::mutable_bytes(back).subspan(500, 120)};
    CHECK(again.readv(places, 10).value().bytes == 150);
    CHECK(std::memcmp(back.data() + 500 + 70, data.data() + 1000, 50) == 0);
    CHECK(fc::file().readv(places, 0).code() == FCAST_STALE);
    CHECK(fc::file::open("/no/such/file", "r").code() == FCAST_NOT_FOUND);
    CHECK(fc::file::open(path.c_str(), "q").code() == FCAST_INVALID);
    ::close(fd);
    ::unlink(path.c_str());
    std::printf("file: ok\n");
}
