/* filter_impl.h: what the files of filter.h share: filter_parse.c makes a filter of text, filter.c
 * asks it. */
#ifndef EVENT_FILTER_IMPL_H
#define EVENT_FILTER_IMPL_H

#include "base/arena.h"
#include "base/json.h"
#include "event/filter.h"

/* One step of a path: a member's name, or an array's index. */
struct segment {
    struct segment *next;
    struct str name;
    bool bare; /* quoted digits never index */
};

/* What a node of the predicate's tree means. */
enum node_type { NODE_OR, NODE_AND, NODE_NOT, NODE_EQUALS, NODE_EXISTS };

/* (1) OR and AND have any number of children, NOT has one, the others have none. So a tree is only
 * as deep as its parentheses, however long a chain of "or" is. */
struct node {
    enum node_type type;
    struct node *first, *next;
    struct segment *path;
    struct json literal;
};

/* A pattern of event types, as pattern_match takes it. */
struct pattern {
    struct pattern *next;
    struct str text;
};

/* Everything the pointers lead to lives in the arena. */
struct filter {
    struct arena a;
    struct pattern *patterns; /* NULL: every type */
    struct node *where;       /* NULL: every payload */
};

/* filter_parse_events compiles a list of patterns into f, filter_parse_where a predicate. NULL and
 * "" mean all. ERR_CONFIG says where the text is wrong, and what was expected there. */
int filter_parse_events(struct filter *f, const char *events, struct error *err);
int filter_parse_where(struct filter *f, const char *where, struct error *err);

#endif
