#include <stdio.h>

#ifdef _WIN32
static int open_port(const char *name)
{
    return 1;
}
#elif defined(__linux__)
static int open_port(const char *name)
{
    return 2;
}
#else
static int open_port(const char *name);
#endif

struct port {
    int number;
#ifdef WIDE
    long flags;
#endif
};

int main(void)
{
#ifdef _WIN32
    return open_port("COM1");
#else
    return open_port("/dev/ttyS0");
#endif
}
