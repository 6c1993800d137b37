/*
 * Spans, statuses and results: what every function of fabricast.hpp gives and takes.
 */
#ifndef FABRICAST_RESULT_HPP
#define FABRICAST_RESULT_HPP

#include <fabricast.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#if __cplusplus >= 202002L
#include <span>
#endif

#if !defined(FABRICAST_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define FABRICAST_NO_EXCEPTIONS
#endif
#ifndef FABRICAST_NO_EXCEPTIONS
#include <stdexcept>
#endif

namespace fabricast {

// ---- spans --------------------------------------------------------------------------------------

#if __cplusplus >= 202002L
template <class T> using span = std::span<T>;
#else
/// A run of values that lie elsewhere, as std::span of C++20 has it.
template <class T> class span {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using size_type = std::size_t;
    using iterator = T *;

    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t N> constexpr span(T (&array)[N]) noexcept : span(array, N) {}
    /// Of whatever has data() and size(), such as a vector, an array or another span.
    template <class Range, class Data = decltype(std::declval<Range &>().data()),
              class = std::enable_if_t<
                  !std::is_array_v<std::remove_reference_t<Range>> &&
                  std::is_convertible_v<std::remove_pointer_t<Data> (*)[], T (*)[]>>,
              class = decltype(std::declval<Range &>().size())>
    constexpr span(Range &&range) noexcept : span(range.data(), range.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t at) const noexcept { return data_[at]; }
    constexpr span first(std::size_t count) const noexcept { return {data_, count}; }
    constexpr span subspan(std::size_t from) const noexcept { return {data_ + from, size_ - from}; }
    constexpr span subspan(std::size_t from, std::size_t count) const noexcept
    {
        return {data_ + from, count};
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};
#endif

using bytes = span<const std::uint8_t>;
using mutable_bytes = span<std::uint8_t>;

/// The bytes of a value of plain old data, as a header is.
template <class T> bytes bytes_of(const T &value) noexcept
{
    static_assert(std::is_trivially_copyable_v<T>, "only plain data has bytes that mean something");
    return {reinterpret_cast<const std::uint8_t *>(&value), sizeof value};
}

// ---- statuses and results -----------------------------------------------------------------------

/// What a call came to: FCAST_OK, or why not.
class [[nodiscard]] status {
public:
    constexpr status() noexcept = default;
    constexpr status(fcast_status code) noexcept : code_(code) {}
    constexpr fcast_status code() const noexcept { return code_; }
    constexpr bool ok() const noexcept { return code_ == FCAST_OK; }
    /// Not now: an event of the kind `event_kind::writable` says when.
    constexpr bool again() const noexcept { return code_ == FCAST_AGAIN; }
    constexpr explicit operator bool() const noexcept { return ok(); }
    const char *name() const noexcept { return fcast_status_name(code_); }
    friend constexpr bool operator==(status a, status b) noexcept { return a.code_ == b.code_; }
    friend constexpr bool operator!=(status a, status b) noexcept { return a.code_ != b.code_; }

private:
    fcast_status code_ = FCAST_OK;
};

/// Why something failed: the status, the library's words, and the number of libfabric or of the
/// system that belongs to it.
struct failure {
    status code;
    std::string words;
    std::int32_t number = 0;

    /// The last failure of this thread.
    static failure last(status code) { return {code, fcast_last_error(), fcast_last_errno()}; }
};

#ifndef FABRICAST_NO_EXCEPTIONS
/// What every exception of this library is, besides one of the standard's: `.value()` throws one
/// that is a std::runtime_error, too. To catch; what a program throws is a `thrown_error`.
class error {
public:
    virtual ~error() = default;
    /// The status, and the library's words.
    virtual const char *what() const noexcept = 0;
    status code() const noexcept { return why_.code; }
    /// The number of libfabric (fi_errno.3) or of the system (errno.3); 0 where there is none.
    std::int32_t number() const noexcept { return why_.number; }

protected:
    explicit error(failure why) : why_(std::move(why)) {}

private:
    failure why_;
};

/// An `error` by whichever of the standard's exceptions it is, which `std::exception` catches once.
template <class Standard> class error_as : public error, public Standard {
public:
    explicit error_as(failure why)
        : error(why), Standard(std::string(why.code.name()) + ": " + why.words)
    {
    }
    const char *what() const noexcept override { return Standard::what(); }
};

using thrown_error = error_as<std::runtime_error>;
#endif

namespace detail {
[[noreturn]] inline void raise(failure why)
{
#ifdef FABRICAST_NO_EXCEPTIONS
    std::fprintf(stderr, "fabricast: %s: %s\n", why.code.name(), why.words.c_str());
    std::abort();
#else
    throw thrown_error(std::move(why));
#endif
}
} // namespace detail

/// A value, or why there is none.
template <class T> class [[nodiscard]] result {
public:
    result(T value) noexcept(std::is_nothrow_move_constructible_v<T>) : good_(true)
    {
        new (&value_) T(std::move(value));
    }
    result(failure why) : why_(new failure(std::move(why))) {}
    result(result &&other) noexcept : good_(other.good_), why_(std::move(other.why_))
    {
        if (good_)
            new (&value_) T(std::move(other.value_));
    }
    result &operator=(result &&other) noexcept
    {
        if (this != &other) {
            this->~result();
            new (this) result(std::move(other));
        }
        return *this;
    }
    ~result()
    {
        if (good_)
            value_.~T();
    }

    bool has_value() const noexcept { return good_; }
    explicit operator bool() const noexcept { return good_; }
    /// The value; throws `error` where there is none.
    T &value() &
    {
        need();
        return value_;
    }
    T value() &&
    {
        need();
        return std::move(value_);
    }
    /// The value, which must be there.
    T &operator*() & noexcept { return value_; }
    T operator*() && noexcept { return std::move(value_); }
    T *operator->() noexcept { return &value_; }
    const T *operator->() const noexcept { return &value_; }
    /// Why there is no value, which must not be there.
    const failure &error() const noexcept { return *why_; }
    status code() const noexcept { return good_ ? status() : why_->code; }

private:
    void need()
    {
        if (!good_)
            detail::raise(*why_);
    }

    bool good_ = false;
    union {
        T value_;
    };
    std::unique_ptr<failure> why_;
};

/// That something was done, or why not.
template <> class [[nodiscard]] result<void> {
public:
    result() noexcept = default;
    result(failure why) : why_(new failure(std::move(why))) {}
    bool has_value() const noexcept { return !why_; }
    explicit operator bool() const noexcept { return !why_; }
    /// Throws `error` where it was not done.
    void value() const
    {
        if (why_)
            detail::raise(*why_);
    }
    const failure &error() const noexcept { return *why_; }
    status code() const noexcept { return why_ ? why_->code : status(); }

private:
    std::unique_ptr<failure> why_;
};

namespace detail {
inline result<void> done(fcast_status code)
{
    if (code == FCAST_OK)
        return {};
    return failure::last(code);
}

/// Runs a function of the program's that C has called, and whose outcome is a status. What it
/// throws is one, too: an `error` its own, all else that the function failed.
template <class Call> fcast_status guarded(Call &&call) noexcept
{
#ifdef FABRICAST_NO_EXCEPTIONS
    return status(call()).code();
#else
    try {
        return status(call()).code();
    } catch (const error &thrown) {
        return thrown.code() ? FCAST_SYSTEM : thrown.code().code();
    } catch (const std::bad_alloc &) {
        return FCAST_NO_RESOURCES;
    } catch (...) {
        return FCAST_SYSTEM;
    }
#endif
}
} // namespace detail

} // namespace fabricast

#endif
