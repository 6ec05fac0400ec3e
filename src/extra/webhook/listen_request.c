/* listen_request.c: a request to `webhook listen`, from its head to its answer. The daemon calls
 * listen_take and listen_forget. */
#include <stdio.h>
#include <stdlib.h>

#include "extra/webhook/listen.h"

static enum MHD_Result answer(struct listener *l, struct visit *v)
{
    v->answered = true;
    l->answered++;
    return MHD_queue_response(v->conn, v->status, l->answer);
}

/* enqueue suspends the connection until its answer is due. */
static enum MHD_Result enqueue(struct listener *l, struct visit *v)
{
    v->due = clock_mono(&clock_system) + l->w->delay_ms * MS_NS;
    v->next = NULL;
    if (l->last)
        l->last->next = v;
    else
        l->first = v;
    l->last = v;
    MHD_suspend_connection(v->conn);
    return MHD_YES;
}

static void drop_body(struct listener *l, struct visit *v)
{
    l->held -= v->body.n;
    buf_release(&v->body);
}

/* complete deals with a request whose last byte has come: it is judged, printed and answered, now
 * or later. */
static enum MHD_Result complete(struct listener *l, struct visit *v, const char *method,
                                const char *url)
{
    char what[512];
    v->complete = true;
    if (v->client)
        v->client->deadline = CLOCK_NEVER;

    struct verdict verdict = listen_judge(l, v);
    v->status = verdict.status;
    snprintf(what, sizeof(what), "%s %s", method, url);
    listen_print(l, v, what, verdict.text);

    drop_body(l, v);
    if (l->w->delay_ms)
        return enqueue(l, v);
    return answer(l, v);
}

/* refuse drops what has come of the body; the rest is ignored. */
static void refuse(struct listener *l, struct visit *v, unsigned status)
{
    v->refused = status;
    drop_body(l, v);
}

/* keep adds a piece to the body, unless that or all bodies together become too large. */
static void keep(struct listener *l, struct visit *v, const char *data, size_t n)
{
    if (v->refused)
        return;
    if (n > l->body_max - v->body.n) {
        refuse(l, v, MHD_HTTP_CONTENT_TOO_LARGE);
        return;
    }
    if (n > l->bodies_max - l->held) {
        refuse(l, v, MHD_HTTP_SERVICE_UNAVAILABLE);
        return;
    }
    buf_add(&v->body, data, n);
    if (v->body.failed)
        refuse(l, v, MHD_HTTP_SERVICE_UNAVAILABLE);
    else
        l->held += n;
}

static struct client *client_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* arrive starts a visit when the head of a request is there. If the announced body is too large, it
 * answers before the client sends it. */
static enum MHD_Result arrive(struct listener *l, struct MHD_Connection *conn, void **state)
{
    struct visit *v = calloc(1, sizeof(*v));
    *state = v;
    if (!v)
        return MHD_NO;
    v->conn = conn;
    v->client = client_of(conn);
    listen_give_time(l, v->client, l->w->request_ms);
    buf_init(&v->body, l->body_max);

    const char *announced = listen_header(v, "Content-Length");
    bool too_large = announced && strtoull(announced, NULL, 10) > l->body_max;
    if (!too_large)
        return MHD_YES;
    v->complete = true;
    v->status = MHD_HTTP_CONTENT_TOO_LARGE;
    return answer(l, v);
}

enum MHD_Result listen_take(void *ctx, struct MHD_Connection *conn, const char *url,
                            const char *method, const char *version, const char *data, size_t *size,
                            void **state)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)version;
    if (!v)
        return arrive(l, conn, state);
    if (*size) {
        keep(l, v, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!v->complete)
        return complete(l, v, method, url);
    if (!v->answered)
        return answer(l, v);
    return MHD_YES;
}

/* listen_forget also gives the client time for its next request. */
void listen_forget(void *ctx, struct MHD_Connection *conn, void **state,
                   enum MHD_RequestTerminationCode why)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)conn;
    (void)why;
    if (!v)
        return;
    listen_give_time(l, v->client, l->w->request_ms + LISTEN_BETWEEN_MS);
    drop_body(l, v);
    free(v);
    *state = NULL;
}

void listen_resume(struct listener *l, bool all)
{
    int64_t now = clock_mono(&clock_system);
    while (l->first && (all || l->first->due <= now)) {
        struct visit *v = l->first;
        l->first = v->next;
        if (!l->first)
            l->last = NULL;
        MHD_resume_connection(v->conn);
    }
}
