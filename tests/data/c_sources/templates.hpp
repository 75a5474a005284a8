#pragma once

namespace data::detail {

template <typename T, int N = 4>
class Ring final : public Base<T>
{
public:
    using value_type = T;
    enum class Mode { Drop, Block };

    Ring() = default;
    Ring(const Ring &) = delete;
    explicit Ring(Mode mode) : m_mode(mode), m_size(0) {}
    ~Ring();

    template <typename U>
    bool push(U &&value)
    {
        return true;
    }

    T *begin() { return m_items; }
    const T &operator[](int index) const { return m_items[index]; }
    bool operator==(const Ring &other) const;
    bool operator <(const Ring &other) const;
    explicit operator bool() const { return m_size > 0; }
    operator const T *() const;
    void *operator new[](unsigned long size);
    void operator()() {};

    friend void swap(Ring &a, Ring &b) { (void)a; (void)b; }
    friend class Inspector;

    struct Slot {
        T value;
        int age() const { return 0; }
    };

private:
    T m_items[N];
    Mode m_mode = Mode::Drop;
    int m_size;
};

template <typename T, int N>
Ring<T, N>::~Ring()
{
}

template <typename T, int N>
bool Ring<T, N>::operator==(const Ring &other) const
{
    return m_size == other.m_size;
}

template <>
bool Ring<int, 2>::operator==(const Ring &) const { return false; }

template <>
struct hash<Ring<int, 4>> {
    unsigned long operator()(const Ring<int, 4> &) const noexcept { return 1; }
};

template <typename T>
concept Sized = requires(T value) { value.size(); };

template <typename T>
using Small = Ring<T, 2>;

inline namespace v2 {
constexpr long operator""_kib(unsigned long long value) { return value << 10; }
}

namespace {
int hidden() { return 1; }
}

} // namespace data::detail

auto data::detail::Missing::find(int a) const -> const int & { static int b; return b; }
const char *text = R"(
int not_a_function() { }
)";
extern "C" int from_c(void) { return 1; }
extern "C" {
int declared_in_c(void);
}
