#define X_LIST(X) X(one) X(two)
#define X_ENUM(name) name,
enum kinds { X_LIST(X_ENUM) };
#if 0
int never( { it's
#endif

struct flags {
    unsigned low : 4, high : 4;
    struct { int x, y; };
    union { int i; float f; } value;
    int (*call)(struct flags *self, int);
} __attribute__((packed));

static const struct flags table[] = {
    [0] = { .low = 1 },
    [1] = { .high = 2 },
};

__attribute__((constructor)) static void start(void) { }
static __inline__ int fast(int a) { return a; }
int variadic(const char *format, ...) { return 0; }
_Noreturn void stop(void);
int old_array(int n, int a[static n]) { return ({ int b = a[0]; b; }); }
unsigned long long
spread
(void)
{
    return 0;
}
typedef int array_t[10], (*handler_t)(void);
DEFINE_LIST(things, struct flags)
int after_a_macro(void) { return 1; }
int trigraph(void) { return '??/''; }
