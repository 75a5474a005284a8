#include <compare>

class CORE_EXPORTS Unknown : public Base
{
public:
    int kept() const { return 1; }
};

namespace core::v1 {

template <typename... Ts>
    requires (sizeof...(Ts) > 0)
struct Pack : Ts... {
    using Ts::operator()...;
    auto operator<=>(const Pack &) const = default;
    static inline constexpr auto square = [](int x) { return x * x; };
    [[nodiscard]] constexpr int size() const noexcept { return sizeof...(Ts); }
    template <typename U> friend bool same(const Pack &, const U &) { return false; }
    union { int number; float real; };
};

template <typename... Ts>
Pack(Ts...) -> Pack<Ts...>;

}

enum class Level : unsigned char;
enum class Level : unsigned char { Low, High = 0x1'000 };

auto first() -> int try { return 1; } catch (...) { return 2; }

const char *raw = R"delimiter(
int not_here() { })" }
)delimiter";

consteval int at_compile_time(int n) { return n; }
co_task<int> routine() { co_await other(); co_return 1; }
void Outer::Inner::method(int a) const & noexcept { }
int (Outer::*pointer)(int) = nullptr;
Outer::operator std::string_view() const { return {}; }
template <> int Outer::special<int>() { return 1; }
void *operator new(unsigned long size) { return nullptr; }
static_assert(sizeof(int) == 4, "int main() {}");
