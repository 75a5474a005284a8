#ifndef SHAPES_H
#define SHAPES_H

#if defined(_WIN32)
#  define SHAPES_API __declspec(dllexport)
#else
#  define SHAPES_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What an area is measured in. */
typedef enum shapes_unit { SHAPES_METRE, SHAPES_FOOT } shapes_unit;

struct shapes_list;

SHAPES_API extern const char *shapes_name(struct shapes_list *list);
extern SHAPES_API int shapes_count(struct shapes_list *list);
SHAPES_EXPORT
double shapes_area(struct shapes_list *list, shapes_unit unit);

static inline int shapes_is_empty(struct shapes_list *list)
{
    return shapes_count(list) == 0;
}

#define SHAPES_EACH(list, index) \
    for (int index = 0; \
         index < shapes_count(list); \
         index++)

typedef int (*shapes_compare)(const void *, const void *);
int (*shapes_hook)(int);
int *(*shapes_find(int kind))(struct shapes_list *);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
