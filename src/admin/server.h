/* server.h: declarations shared by server.c (connections, requests, start and stop) and pages.c
 * (the pages). Nobody else includes it. */
#ifndef ADMIN_SERVER_H
#define ADMIN_SERVER_H

#include <pthread.h>

#include "admin/admin.h"
#include "admin/guests.h"
#include "admin/metrics.h"
#include "admin/socket.h"
#include "admin/token.h"

struct MHD_Daemon;

/* (1) store_lock protects st, token_lock protects tokens. */
struct admin {
    struct admin_config cfg;
    struct MHD_Daemon *http;
    struct guests guests;
    struct socket_file file;
    bool local; /* only this machine can reach us */
    atomic_llong refused[METRICS_REFUSALS];
    pthread_mutex_t store_lock, token_lock;
    struct store *st;      /* for scrapes; the first one opens it */
    struct tokens *tokens; /* NULL: none */
};

#define PAGES_TEXT "text/plain; charset=utf-8"

/* How much detail a page shows. */
enum page_detail {
    PAGE_SHORT,
    PAGE_VERBOSE,  /* a line per consumer */
    PAGE_WITHHELD, /* the client asked for it, but may not see it */
};

/* A page. (1) make appends its text and returns the status. */
struct page {
    const char *path, *type;
    bool open; /* anybody may see it, except for its details */
    unsigned (*make)(struct admin *s, enum page_detail detail, struct buf *b);
};

/* pages_find returns the page of a path, or NULL. */
const struct page *pages_find(const char *path);

#endif
