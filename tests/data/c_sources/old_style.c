int add(a, b)
    int a;
    int b;
{
    return a + b;
}

char *copy(from, size)
    char *from;
    int size;
{
    return from;
}

static twice(a)
{
    return a + a;
}

void each(call, items) void (*call)(); struct item *items; { call(items); }

struct item *first(items) struct item *items; { return items; }

int after;
