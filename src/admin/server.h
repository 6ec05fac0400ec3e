/* server.h: what the files of the HTTP server share: server.c (connections, requests, start and
 * stop), pages.c (what there is to read). Nobody else includes it. */
#ifndef ADMIN_SERVER_H
#define ADMIN_SERVER_H

#include <pthread.h>

#include "admin/admin.h"
#include "admin/guests.h"
#include "admin/metrics.h"
#include "admin/socket.h"
#include "admin/token.h"

struct MHD_Daemon;

/* (1) st is used under store_lock, tokens under token_lock. */
struct admin {
    struct admin_config cfg;
    struct MHD_Daemon *http;
    struct guests guests;
    struct socket_file file;
    bool local; /* only this machine reaches us */
    atomic_llong refused[METRICS_REFUSALS];
    pthread_mutex_t store_lock, token_lock;
    struct store *st;      /* for scrapes; opened by the first */
    struct tokens *tokens; /* NULL: none */
};

#define PAGES_TEXT "text/plain; charset=utf-8"

/* How much one who asks may see, and wants to. */
enum page_detail {
    PAGE_SHORT,
    PAGE_VERBOSE,  /* a line per consumer */
    PAGE_WITHHELD, /* he wants it, but may not */
};

/* A page. (1) make appends it and returns the status. */
struct page {
    const char *path, *type;
    bool open; /* everybody may see it, but for its details */
    unsigned (*make)(struct admin *s, enum page_detail detail, struct buf *b);
};

/* pages_find gives the page of a path, or NULL. */
const struct page *pages_find(const char *path);

#endif
