/*
 * Files for C++17: reads and writes of host memory, of regions and of GPU memory, now or by
 * themselves, with results in place of statuses.
 */
#ifndef FABRICAST_FILE_HPP
#define FABRICAST_FILE_HPP

#include <fabricast.hpp>

namespace fabricast {

/// How a file is opened; as fcast_file_settings, with the defaults.
struct file_settings : fcast_file_settings {
    file_settings() noexcept : fcast_file_settings() { size = sizeof(fcast_file_settings); }
};

/// What one transfer asks for; as fcast_file_options, with the defaults.
struct file_options : fcast_file_options {
    file_options() noexcept : fcast_file_options() { size = sizeof(fcast_file_options); }
};

/// A transfer that goes on by itself. The memory is its own until wait() tells what came of it; one
/// that goes before that is waited for.
class file_transfer : public detail::owner<fcast_file_transfer, fcast_file_transfer_release> {
public:
    using owner::owner;
    /// What was moved. FCAST_AGAIN or FCAST_TIMED_OUT: it goes on.
    result<fcast_file_moved> wait(std::uint32_t timeout_ms = FCAST_NEVER) const
    {
        fcast_file_moved moved{};
        if (fcast_status code = fcast_file_transfer_wait(raw_, timeout_ms, &moved))
            return failure::last(code);
        return moved;
    }
};

/// A file. `in`, where a function has it: the region that the memory lies in, which may be a GPU's;
/// without it the memory is the host's.
class file : public detail::owner<fcast_file, fcast_file_release> {
public:
    using owner::owner;
    /// `flags`: "r", "w", "a" or "x", each with "+" for both directions.
    static result<file> open(const char *path, const char *flags, const file_settings &of = {})
    {
        fcast_file out{};
        if (fcast_status code = fcast_file_open(path, flags, &of, &out))
            return failure::last(code);
        return file(out);
    }
    /// Of a descriptor, which is duplicated.
    static result<file> from_fd(int fd, const file_settings &of = {})
    {
        fcast_file out{};
        if (fcast_status code = fcast_file_from_fd(fd, &of, &out))
            return failure::last(code);
        return file(out);
    }
    result<std::uint64_t> size() const
    {
        std::uint64_t bytes = 0;
        if (fcast_status code = fcast_file_size(raw_, &bytes))
            return failure::last(code);
        return bytes;
    }

    /// Reads, and waits for it. Short at the end of the file only.
    result<fcast_file_moved> read(mutable_bytes into, std::uint64_t offset, fcast_region in = {},
                                  const file_options &of = {}) const
    {
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_read(raw_, in, into.data(), into.size(), offset, &of, &moved))
            return failure::last(code);
        return moved;
    }
    /// Writes all of it, and waits for it.
    result<fcast_file_moved> write(bytes from, std::uint64_t offset, fcast_region in = {},
                                   const file_options &of = {}) const
    {
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_write(raw_, in, from.data(), from.size(), offset, &of, &moved))
            return failure::last(code);
        return moved;
    }
    /// Reads one run of the file into several pieces of the host's memory, and waits for it.
    result<fcast_file_moved> readv(span<const mutable_bytes> into, std::uint64_t offset) const
    {
        std::vector<fcast_span> pieces;
        pieces.reserve(into.size());
        for (const mutable_bytes &piece : into)
            pieces.push_back({piece.data(), piece.size()});
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_readv(raw_, pieces.data(), pieces.size(), offset, &moved))
            return failure::last(code);
        return moved;
    }
    /// Writes several pieces of the host's memory to one run of the file, and waits for it.
    result<fcast_file_moved> writev(span<const bytes> from, std::uint64_t offset) const
    {
        std::vector<fcast_bytes> pieces;
        pieces.reserve(from.size());
        for (const bytes &piece : from)
            pieces.push_back({piece.data(), piece.size()});
        fcast_file_moved moved{};
        if (fcast_status code =
                fcast_file_writev(raw_, pieces.data(), pieces.size(), offset, &moved))
            return failure::last(code);
        return moved;
    }
    /// Reads with the threads of the pool, and returns at once.
    result<file_transfer> pread(mutable_bytes into, std::uint64_t offset, fcast_region in = {},
                                const file_options &of = {}) const
    {
        fcast_file_transfer out{};
        if (fcast_status code =
                fcast_file_begin_read(raw_, in, into.data(), into.size(), offset, &of, &out))
            return failure::last(code);
        return file_transfer(out);
    }
    /// Writes with the threads of the pool, and returns at once.
    result<file_transfer> pwrite(bytes from, std::uint64_t offset, fcast_region in = {},
                                 const file_options &of = {}) const
    {
        fcast_file_transfer out{};
        if (fcast_status code =
                fcast_file_begin_write(raw_, in, from.data(), from.size(), offset, &of, &out))
            return failure::last(code);
        return file_transfer(out);
    }
};

} // namespace fabricast

#endif
